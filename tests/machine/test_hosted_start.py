"""A server whose settings name a hosted model: new projects have it, and a start without it ends at once."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.base.settings import Settings
from app.base.values import hosted_id
from app.db.database import Sessions
from app.machine.up import kept_models
from app.projects import store as projects
from app.releases import hosted_models
from app.releases import store as releases
from app.releases.adapter_store import AdapterStore
from app.releases.hosted_models import HostedModels
from app.releases.promotion import FirstRelease
from tests.engine.test_hosted_models_api import HELLO, KEY, Provider
from tests.machine.test_up import _ended, client_of, running
from tests.support.api_app import open_api_app
from tests.support.odd_endpoint import OddEndpoint, Reply, said
from tests.support.processes import free_ports
from tests.tasks.test_secrets_stay_secret import dump

CODE = "I know it.\n```python\napis.supervisor.complete_task(answer=42)\n```\n"


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def url(provider: Provider) -> AsyncIterator[str]:
    async with provider.listening() as opened:
        yield opened


async def test_a_new_project_has_it_and_its_key_stays_in_the_settings(
    committed: Sessions, database_url: str, url: str, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path, model_url=url, model="wise-1", model_key=KEY)
    first = FirstRelease.of(settings)
    async with open_api_app(committed, database_url, first_release=first) as api:
        assert (await api.client.post("/v1/projects", json={"name": "new"})).status_code == 201
        [shown] = (await api.client.get("/v1/hosted-models", params={"project": "new"})).json()
        [release] = (await api.client.get("/v1/releases", params={"project": "new"})).json()
        assert (shown["name"], shown["url"], shown["model"], shown["has_key"]) == ("wise-1", url, "wise-1", False)
        assert (release["state"], release["model"]) == ("active", "wise-1")
        assert KEY not in await dump(committed)
        async with api.sessions() as session:
            [(_, row)] = [each for each in await releases.serving(session) if each[0] == "new"]
            model_id = hosted_id(row.model)
            assert model_id is not None
        async with HostedModels.of(settings).open(api.sessions, model_id) as model:
            assert (await model.answer(HELLO, max_tokens=9, temperature=0)).text == "1 2 3 4"
        known = api.app.state["dependencies"]
        api.app.state["dependencies"] = msgspec.structs.replace(known, hosted_endpoints=HostedModels.of(settings))
        for body, why in (
            ({"url": "http://127.0.0.1:9"}, "send its key as well"),
            ({"url": f"{url}/other"}, "send its key as well"),
            ({"model": "wise-2"}, "is that of the settings"),
        ):
            moved = await api.client.patch("/v1/hosted-models/wise-1", params={"project": "new"}, json=body)
            assert (moved.status_code, why in moved.text) == (400, True), moved.text
        same: dict[str, Any] = {"url": url, "model": "wise-1", "price_in": 2}
        priced = await api.client.patch("/v1/hosted-models/wise-1", params={"project": "new"}, json=same)
        assert (priced.status_code, priced.json()["price_in"]) == (200, 2), priced.text


async def test_what_a_start_found_out_is_known_of_all_projects(
    committed: Sessions, url: str, tmp_path: Path
) -> None:
    first = FirstRelease(None, tmp_path, AdapterStore(tmp_path), base="seed", hosted=(url, "wise-1"))
    async with committed.begin() as session:
        one = await first.create_project(session, "one")
        await hosted_models.renew(session, url, "wise-1", {"context": 4096})
        two = await first.create_project(session, "two")
        found = [(await hosted_models.get(session, each.id, "wise-1")).abilities for each in (one, two)]
    assert found == [{"context": 4096}] * 2


async def test_a_start_names_the_projects_that_go_on_with_another_model(
    committed: Sessions, url: str, tmp_path: Path
) -> None:
    store = AdapterStore(tmp_path)
    async with committed.begin() as session:
        for name, model in (("its", "wise-1"), ("older", "wise-0")):
            await FirstRelease(None, tmp_path, store, base="seed", hosted=(url, model)).create_project(
                session, name
            )
        await projects.create(session, "bare")
        kept = [(name, each.policy) for name, each in await hosted_models.others(session, url, "wise-1")]
        assert kept == [("bare", "base"), ("older", "wise-0")]
    settings = Settings(data_dir=tmp_path, model_url=url, model="wise-1")
    said = kept_models(settings, kept)
    assert said.startswith(
        "projects that go on with another model: bare with seed, older with wise-0. New projects"
    )


async def up(directory: Path, **settings: str) -> tuple[int, str]:
    """The exit code and the error of a start that fails."""
    env = {**os.environ, "SAGE_DATA_DIR": str(directory / "data"), "DATABASE_URL": "", **settings}
    command = (sys.executable, "-m", "app.cli", "up")
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert not (directory / "data" / "postgres").exists(), "nothing was started"
    return process.returncode or 0, err.decode()


async def test_a_start_with_a_bad_key_name_or_url_ends_at_once_and_names_the_setting(
    url: str, tmp_path: Path
) -> None:
    port, engine, demo = map(str, free_ports(3))
    good = {
        "SAGE_MODEL_URL": url,
        "SAGE_MODEL": "wise-1",
        "SAGE_MODEL_KEY": KEY,
        "SAGE_PORT": port,
        "SAGE_ENGINE_PORT": engine,
        "SAGE_DEMO_PORT": demo,
    }
    rows = [
        ({"SAGE_MODEL_KEY": "sk-bad"}, "refuses the key (401: Incorrect API key): correct SAGE_MODEL_KEY"),
        (
            {"SAGE_MODEL": "wise-9"},
            "(404: The model wise-9 does not exist): correct SAGE_MODEL or",
        ),
        ({"SAGE_MODEL_URL": "http://127.0.0.1:9"}, "check SAGE_MODEL_URL, and that it runs"),
        ({"SAGE_MODEL_URL": "localhost:11434"}, "SAGE_MODEL_URL='localhost:11434': write http://host:port"),
        ({"ENGINE_URLS": url}, "SAGE_MODEL_URL and ENGINE_URLS are both set"),
    ]
    for wrong, reason in rows:
        code, error = await up(tmp_path, **{**good, **wrong})
        assert (code, reason in error) == (1, True), error
        assert "Traceback" not in error


class Worker(OddEndpoint):
    """Does every task in one turn, with the answer 42."""

    def __init__(self) -> None:
        super().__init__(self.work)
        self.fails = False

    def work(self, sent: Mapping[str, Any]) -> Reply:
        if self.fails:
            return Reply({"error": {"message": "no more credit"}}, 402)
        return said(
            CODE if len(sent["messages"]) > 1 else "1 2 3 4", usage={"prompt_tokens": 9, "completion_tokens": 5}
        )


@pytest.mark.slow
async def test_a_hosted_model_does_tasks(tmp_path: Path) -> None:
    port, engine, demo = map(str, free_ports(3))
    endpoint = Worker()
    async with endpoint.listening() as url:
        env = {
            **os.environ,
            "HOME": str(tmp_path),
            "DATABASE_URL": "",
            "SAGE_DATA_DIR": str(tmp_path / "data"),
            "SAGE_MODEL_URL": url,
            "SAGE_MODEL": "wise-1",
            "SAGE_PORT": port,
            "SAGE_ENGINE_PORT": engine,
            "SAGE_DEMO_PORT": demo,
            "SAGE_RUNNERS": "1",
            "SAGE_ENGINE_DEVICE": "cpu",
        }
        async with running(env, tmp_path) as server, client_of(env, server.key()) as client:
            assert server.line("model wise-1 at ").startswith(f"model wise-1 at {url}: it answers; ")
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["warnings"].get("hosted models")) == (200, None)
            task = (await client.post("/v1/tasks", json={"instruction": "What is the answer?"})).json()
            done = await _ended(client, task["id"])
            assert (done["state"], done["answer"]) == ("done", 42)
            assert f"{url} answers for wise-1" in await _doctor(env)
            endpoint.fails = True
            failed = (await client.post("/v1/tasks", json={"instruction": "What is the answer?"})).json()
            assert (await _ended(client, failed["id"]))["state"] == "failed"
            ready = await client.get("/readyz")
            warning = ready.json()["warnings"]["hosted models"]
            assert warning.startswith("hosted models of 1 project fail: ")
            assert "no more credit" not in warning, "it is read without a key"
            assert "does not answer" in await _doctor(env)


async def _doctor(env: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "doctor"), env=env, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()
