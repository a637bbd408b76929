"""The process of one training run, without a worker: its failures and their rows."""

import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from app.base.run_settings import RunKind, RunSettings
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import RunState
from app.releases import store as releases
from app.runs import store as runs
from tests.support.rows import LEASE, project_row

PRETEND, REAL = "tests.support.training_process", "trainer.worker.run_process"


@pytest.fixture
def env(database_url: str, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": database_url, "SAGE_DATA_DIR": str(tmp_path / "data")}


async def process(module: str, run_id: UUID, env: dict[str, str], *more: str) -> int:
    command = (sys.executable, "-m", module, str(run_id), *more)
    started = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.DEVNULL)
    return await started.wait()


async def queued(sessions: Sessions, settings: dict[str, Json] | RunSettings) -> tables.TrainingRun:
    async with sessions.begin() as session:
        project = await project_row(session)
        if isinstance(settings, RunSettings):
            return await runs.create(session, project.id, settings)
        return await runs.put(session, project.id, settings)


async def now(sessions: Sessions, run: tables.TrainingRun) -> tables.TrainingRun:
    async with sessions() as session:
        return await runs.get(session, run.id)


@pytest.mark.slow
async def test_a_run_without_data_fails_with_the_reason_and_the_active_release_stays(
    committed: Sessions, env: dict[str, str]
) -> None:
    run = await queued(committed, RunSettings(kind=RunKind.LOGGED))
    assert await process(REAL, run.id, env) == 0
    failed = await now(committed, run)
    assert failed.state is RunState.FAILED
    assert failed.failure is not None
    assert failed.failure.startswith("InvalidError: nothing to learn from: no task ended in the window")
    async with committed() as session:
        assert (await releases.active(session, run.project_id)).number == 1


async def test_settings_that_are_no_longer_valid_are_named(committed: Sessions, env: dict[str, str]) -> None:
    run = await queued(committed, {"kind": "sft", "batch": 7})
    assert await process(PRETEND, run.id, env) == 0
    failed = await now(committed, run)
    assert failed.failure is not None
    assert failed.failure.startswith("InvalidError: a run has no setting batch; did you mean micro_batch_tokens?")


async def test_a_data_directory_that_cannot_be_written_is_named(
    committed: Sessions, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("in the way")
    run = await queued(committed, RunSettings())
    assert await process(PRETEND, run.id, env) == 0
    failed = await now(committed, run)
    assert failed.failure is not None
    assert failed.failure == (
        f"StorageError: {tmp_path}/data/runs/{run.id} cannot be created (Not a directory): check SAGE_DATA_DIR"
    )


async def test_a_run_that_another_process_holds_is_not_touched(committed: Sessions, env: dict[str, str]) -> None:
    run = await queued(committed, RunSettings())
    async with committed.begin() as session:
        await runs.claim(session, "another", LEASE, run.id)
    assert await process(PRETEND, run.id, env) == 0
    assert await process(PRETEND, uuid4(), env) == 0
    held = await now(committed, run)
    assert (held.state, held.owner, held.attempt) == (RunState.RUNNING, "another", 1)


async def test_checkpoints_are_deleted_when_the_run_is_done_and_only_then(
    committed: Sessions, env: dict[str, str], tmp_path: Path
) -> None:
    kept = {}
    for data in ("", "invalid"):
        run = await queued(committed, RunSettings(steps=1, data=data))
        assert await process(PRETEND, run.id, env) == 0
        kept[(await now(committed, run)).state] = sorted(
            path.name for path in (tmp_path / "data" / "runs" / str(run.id)).iterdir()
        )
    assert kept == {
        RunState.DONE: ["notes.log", "project"],
        RunState.FAILED: ["adapters", "learner.checkpoint", "notes.log", "project"],
    }


async def test_the_checkpoints_of_a_run_that_another_process_has_taken_over_stay(
    committed: Sessions, env: dict[str, str], tmp_path: Path
) -> None:
    run = await queued(committed, RunSettings(steps=1, data="taken over"))
    await process(PRETEND, run.id, env)
    assert (await now(committed, run)).state is RunState.RUNNING
    assert (tmp_path / "data" / "runs" / str(run.id) / "learner.checkpoint").exists()


async def test_a_process_whose_worker_has_died_does_not_start(committed: Sessions, env: dict[str, str]) -> None:
    run = await queued(committed, RunSettings())
    assert await process(PRETEND, run.id, env, "--worker", "1") == 1
    assert (await now(committed, run)).state is RunState.QUEUED


async def test_the_row_shows_how_much_is_done_while_the_run_goes_on(
    committed: Sessions, env: dict[str, str]
) -> None:
    run = await queued(committed, RunSettings(steps=20))
    running = asyncio.create_task(process(PRETEND, run.id, env))
    while (part := (await now(committed, run)).part) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert (part["phase"], part["total"]) == ("rollouts", 20)
    assert datetime.fromisoformat(part["at"]) <= datetime.now(UTC)
    assert await running == 0
    assert (await now(committed, run)).part is None


async def test_without_a_database_the_run_stays_queued(committed: Sessions, env: dict[str, str]) -> None:
    run = await queued(committed, RunSettings())
    away = env | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    assert await process(PRETEND, run.id, away) == 1
    assert (await now(committed, run)).state is RunState.QUEUED
