"""Releases on a deployed server: `sage serve` and a model server, each in a process of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import httpx
import pytest

from app.db.database import Sessions
from app.projects import keys
from app.projects import store as projects
from app.releases import store as releases
from tests.processes.test_asgi import environment, sage_process, until_up
from tests.support.desk_service import Desk
from tests.support.desk_service import served as served_desk
from tests.support.engine_process import engine_process
from tests.support.ledger_project import until
from tests.support.named_adapters import make_named
from tests.support.processes import free_ports
from tests.support.tiny_model import make_model_dir


class Served(NamedTuple):
    client: httpx.AsyncClient
    sessions: Sessions
    project: UUID
    names: dict[str, str]  # of adapters, by short ones

    async def propose(self, name: str) -> str:
        """The path that activates it."""
        async with self.sessions.begin() as session:
            release = await releases.propose(session, self.project, self.names[name])
            return f"/v1/releases/{release.id}/activate"

    async def submit(self, count: int) -> list[str]:
        tasks = {"tasks": [{"instruction": "say something"}] * count}
        answer = await self.client.post("/v1/tasks", json=tasks)
        return [each["id"] for each in answer.json()["tasks"]]

    async def ended(self, task: str) -> dict[str, Any]:
        return await self._beyond(task, "accepted", "running")

    async def begun(self, task: str) -> dict[str, Any]:
        return await self._beyond(task, "accepted")

    async def _beyond(self, task: str, *states: str) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = (await self.client.get(f"/v1/tasks/{task}")).json()
            if found["state"] not in states:
                return found
            await asyncio.sleep(0.1)

    async def serving(self) -> str:
        listed = (await self.client.get("/v1/releases")).json()
        return next(str(each["model"]) for each in listed if each["state"] == "active")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_model_dir(tmp_path_factory.mktemp("model"))


def served_model_dir(path: Path) -> Path:
    """With room for the prompt and two turns."""
    make_model_dir(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    (path / "README.md").write_text("---\nprompt_profile: compact\n---\n")
    return path


@asynccontextmanager
async def serving(
    database_url: str, engine: str, model_dir: Path, data_dir: Path, secret: str, **env: str
) -> AsyncIterator[httpx.AsyncClient]:
    """The API and a runner as processes; a client with the key."""
    [port] = free_ports(1)
    env = (
        environment(data_dir / "other", database_url, port)
        | {
            "ENGINE_URLS": engine,
            "SAGE_MODEL": str(model_dir),
            "SAGE_DATA_DIR": str(data_dir),
            "SAGE_MAX_TURNS": "2",
            "SAGE_MAX_TURN_TOKENS": "40",
        }
        | env
    )
    headers = {"Authorization": f"Bearer {secret}"}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, trust_env=False)
    async with sage_process("serve", env) as api, sage_process("runner", env), client:
        await until_up(client, api)
        yield client


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir, "--embeddings", "none", "--max-loras", "2") as url:
        yield url


@pytest.fixture
async def served(
    committed: Sessions, database_url: str, engine: str, model_dir: Path, tmp_path: Path
) -> AsyncIterator[Served]:
    adapters = tmp_path / "adapters"
    names = {name: make_named(model_dir, adapters, seed) for seed, name in enumerate("ab")}
    names |= {"nan": make_named(model_dir, adapters, 3, fill=float("nan")), "none": "0" * 32}
    async with committed.begin() as session:
        project = await projects.create(session, "demo")
        _, secret = await keys.create(session, "test", ["admin"])
    async with serving(database_url, engine, model_dir, tmp_path, secret, SAGE_MAX_TASKS_IN_FLIGHT="4") as client:
        yield Served(client, committed, project.id, names)


async def test_tasks_keep_the_release_they_began_with_through_a_swap_and_none_fails(served: Served) -> None:
    before = await served.submit(8)
    await served.begun(before[0])  # or a busy machine may begin it after the swap
    answer = await served.client.post(await served.propose("a"))
    assert (answer.status_code, answer.json()["state"]) == (200, "active")
    after = await served.submit(4)
    assert (await served.client.post(await served.propose("b"))).status_code == 200
    last = await served.submit(2)
    tasks = [await served.ended(task) for task in [*before, *after, *last]]
    assert {task["state"] for task in tasks} == {"done"}
    for task in tasks:
        record = (await served.client.get(task["links"]["trajectory"])).json()
        assert record["policy"]["model"] == task["release"]["model"]
    assert [task["release"]["model"] for task in tasks[-2:]] == [served.names["b"]] * 2
    assert tasks[0]["release"]["model"] == "base"


async def test_a_new_api_that_the_model_cannot_use_is_tried_and_warned_of(served: Served) -> None:
    async with served_desk(Desk()) as desk:
        body = {"name": "desk", "url": f"{desk.url}/openapi.json"}
        assert (await served.client.post("/v1/apis", json=body)).status_code == 201

        async def trial_ended() -> bool:
            shown = (await served.client.get("/v1/apis/desk")).json()["trial"]
            return shown["finished_at"] is not None

        await until(trial_ended)
        trial = (await served.client.get("/v1/apis/desk/trial")).json()
        assert (trial["state"], trial["right"], trial["asked"]) == ("done", 0, 5)
        assert all(each["turns"] for each in trial["questions"])
        ready = (await served.client.get("/readyz")).json()
        assert "the model answered 0 of 5 questions right" in ready["warnings"]["model"]
        assert (await served.client.get("/v1/tasks")).json()["tasks"] == []


async def test_a_damaged_adapter_is_refused_by_name_and_the_active_release_stays(served: Served) -> None:
    refused = ("nan", "AdapterError", "not finite"), ("none", "UnreadableAdapterError", "there is no adapter")
    for model, error, words in refused:
        answer = await served.client.post(await served.propose(model))
        assert (answer.status_code, answer.json()["error"]) == (409, error)
        assert words in answer.json()["detail"]
    assert await served.serving() == "base"
    [task] = await served.submit(1)
    assert (await served.ended(task))["release"]["number"] == 1
