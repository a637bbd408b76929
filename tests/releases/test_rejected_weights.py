"""Weights that were rejected serve only by an explicit override, whatever release proposes them again."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.base.run_settings import RunSettings
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.engine.adapter_files import content_hash
from app.projects import audit
from app.releases import store as releases
from app.runs import store as runs
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.http_server import served
from tests.support.sage_command import SageCommand
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir


@pytest.fixture
async def shell(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[SageCommand]:
    directory = tmp_path / "data" / "adapters"
    async with open_api_app(committed, database_url, directory=directory) as api, served(api) as client:
        yield SageCommand(api, str(client.base_url))


@pytest.fixture
def brought(tmp_path: Path) -> Path:
    return make_adapter(make_model_dir(tmp_path / "model"), tmp_path / "mine", seed=1)


async def _rejected(api: ApiApp, model: str) -> UUID:
    """Release 2, of a run."""
    async with api.sessions.begin() as session:
        run = await runs.create(session, api.demo.id, RunSettings())
        release = await releases.propose(session, api.demo.id, model, run.id)
        await releases.reject(session, release.id, {"reason": "worse"})
        return release.id


async def _release(api: ApiApp, number: int) -> dict[str, Any]:
    listed: list[dict[str, Any]] = (await api.client.get("/v1/releases")).json()
    return next(each for each in listed if each["number"] == number)


async def _overrides(api: ApiApp, action: AuditAction) -> list[object]:
    async with api.sessions() as session:
        page = await audit.page(session, api.demo.id, limit=50)
    return [each.detail.get("overrides_rejection_of") for each in page.items if each.action is action]


async def test_a_rejected_adapter_that_is_added_again_does_not_serve(
    shell: SageCommand, brought: Path, tmp_path: Path
) -> None:
    await _rejected(shell.api, content_hash(brought))
    add = ("releases", "--add", str(brought))
    ended = await shell.run(*add, "--activate", SAGE_DATA_DIR=str(tmp_path / "data"))
    assert ended.code == 6
    assert "the weights of release 3 were rejected (as release 2, see its evidence)" in ended.err
    ended = await shell.run(*add, "--canary", "10", SAGE_DATA_DIR=str(tmp_path / "data"))
    assert "the weights of release 4 were rejected" in ended.err
    assert (await _release(shell.api, 1))["state"] == "active"
    assert shell.api.loads.models == [], "not even loaded"
    ended = await shell.run("releases", "3", "--activate", "--allow-rejected")
    assert ended.code == 0, ended.err
    assert (await _release(shell.api, 3))["state"] == "active"
    assert await _overrides(shell.api, AuditAction.ACTIVATED) == [2]


async def test_neither_rest_nor_a_canary_that_was_ended_launders_it(shell: SageCommand) -> None:
    api, rejected = shell.api, await _rejected(shell.api, "a" * 32)
    async with api.sessions.begin() as session:
        again = await releases.propose(session, api.demo.id, "a" * 32)
    for release_id in (rejected, again.id):
        canary = f"/v1/releases/{release_id}/canary"
        assert problem(await api.client.post(canary, json={"percent": 5}))["status"] == 409
        begun = await api.client.post(f"{canary}?allow_rejected=true", json={"percent": 5})
        assert begun.json()["state"] == "canary", begun.text
        assert (await api.client.delete(canary)).json()["state"] == "candidate"
        activated = problem(await api.client.post(f"/v1/releases/{release_id}/activate"))
        assert (activated["status"], "rejected" in str(activated["detail"])) == (409, True)
    assert await _overrides(api, AuditAction.CANARY_BEGAN) == [2, 2]


async def test_another_project_and_a_release_that_the_gate_passed_are_not_concerned(shell: SageCommand) -> None:
    api = shell.api
    await _rejected(api, "a" * 32)
    other = await api.project("other")
    async with api.sessions.begin() as session:
        elsewhere = await releases.propose(session, other.id, "a" * 32)
        run = await runs.create(session, api.demo.id, RunSettings())
        trained = await releases.propose(session, api.demo.id, "a" * 32, run.id)
        await releases.approve(session, trained.id, {"verdict": "promote"})
        assert (await releases.activate(session, elsewhere.id)).state is ReleaseState.ACTIVE
        assert (await releases.activate(session, trained.id)).state is ReleaseState.ACTIVE
