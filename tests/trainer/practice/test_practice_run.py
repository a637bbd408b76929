"""A run of practice: from lessons to the gate within its hours, resumed wherever it was killed."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from app.base.model_catalog import SEED
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, RunState
from app.runs import store as runs
from tests.support.practised_project import practised_project
from tests.support.processes import descendants, gone
from tests.support.training_project import ProgressRecorder, TrainingProject, interrupted
from trainer.run import train
from trainer.run_job import run_directory

SMALL: dict[str, Any] = {
    "kind": "practice",
    "environment": "practice?api=sensors",
    "hours": 0.05,
    "gate_scenarios": 30,
    "pairs": 1,
    "group": 4,
    "micro_batch_tokens": 2048,
}
STAGES = ("demonstrations", "supervised", "rollouts", "exam")


@pytest.fixture
async def project(committed: Sessions, database_url: str, tmp_path: Path) -> TrainingProject:
    return await practised_project(committed, database_url, tmp_path)


@pytest.mark.slow
async def test_a_run_that_was_cancelled_goes_on_to_the_gate_and_tells_what_it_did(
    project: TrainingProject,
) -> None:
    job, recorder = await project.job(**SMALL), ProgressRecorder()
    await interrupted(job, at=2)
    assert await project.of_run(job) == []
    result = await train(job, recorder)
    practice = result.data["practice"]
    assert practice["api"] == "sensors"
    assert set(practice["stages"]) == {"samples", *STAGES}
    assert practice["demonstrations"] > 0.8 * practice["tried"] > 20
    assert (practice["supervised_steps"] >= 4, practice["operations"], practice["left_out"]) == (True, 10, {})
    assert sorted(recorder.metrics) == [*range(1, practice["supervised_steps"] + practice["rounds"] + 1)]
    assert {each["stage"] for each in recorder.metrics.values()} <= {"supervised", "rollouts"}
    assert {f"{part.partition(',')[0]}" for part, _, _ in recorder.parts} >= {"supervised steps"}
    [row] = await project.adapters()
    assert (row.hash, row.base, row.run_id) == (result.adapter, SEED, job.id)
    [release] = await project.of_run(job)
    assert (release.model, release.state) in [
        (result.adapter, state) for state in (ReleaseState.PASSED, ReleaseState.REJECTED, ReleaseState.CANDIDATE)
    ]
    assert (await project.active()).number == 1
    assert await project.learned(job) == ("base", 0)
    if "evaluation" in result.evidence:
        assert (result.evidence["evaluation"]["split"], result.evidence["candidate"]["scenarios"]) == ("test", 30)


class RunProcesses:
    """Runs a queued run in processes of its own, which are killed."""

    def __init__(self, project: TrainingProject, run_id: UUID, database_url: str) -> None:
        self._sessions, self._run_id = project.sessions, run_id
        self.directory = run_directory(project.settings, run_id)
        self._env = {
            **os.environ,
            "SAGE_MODEL": SEED,
            "SAGE_ENGINE_DEVICE": "cpu",
            "DATABASE_URL": database_url,
            "SAGE_DATA_DIR": str(project.settings.data_dir),
            "SAGE_LEASE_SECONDS": "6",
        }

    async def row(self) -> tables.TrainingRun:
        async with self._sessions() as session:
            return await runs.get(session, self._run_id)

    async def start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "trainer.worker.run_process", str(self._run_id), "--owner", "me")
        return await asyncio.create_subprocess_exec(*command, env=self._env, stderr=asyncio.subprocess.DEVNULL)

    async def kill_in(self, stage: str) -> None:
        """Start one and kill it as soon as the run is in this stage."""
        process = await self.start()
        while stage not in self.sheet().get("spent", {}):
            if process.returncode is not None:
                row = await self.row()
                raise AssertionError(f"it ended before: {row.state} {row.failure} {self.sheet()}")
            await asyncio.sleep(0.05)
        children = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await gone(children)
        async with self._sessions.begin() as session:
            await runs.expire(session, self._run_id, "me")
        async with self._sessions.begin() as session:
            assert await runs.requeue_expired(session) == [self._run_id]

    def sheet(self) -> dict[str, Any]:
        path = self.directory / "hours.json"
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
        return found


def _files(directory: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mtime_ns for each in directory.iterdir()} if directory.is_dir() else {}


@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_a_run_that_is_killed_in_each_stage_ends_without_losing_one(
    project: TrainingProject, database_url: str
) -> None:
    job = await project.job(**SMALL | {"hours": 0.08})
    processes = RunProcesses(project, job.id, database_url)
    kept, taught, used = dict[str, int](), dict[str, int](), 0.0
    for stage in STAGES:
        await processes.kill_in(stage)
        lessons, adapters = _files(processes.directory / "demonstrations"), _files(processes.directory / "taught")
        assert kept.items() <= lessons.items(), "lessons are kept"
        assert taught.items() <= adapters.items(), "what was taught is kept"
        kept, taught = lessons, adapters
        spent = sum(processes.sheet()["spent"].values())
        assert spent > used, "the time is kept"
        used = spent
    assert kept
    assert taught
    ended = await processes.start()
    assert await ended.wait() == 0
    row = await processes.row()
    assert row.state is RunState.DONE, row.failure
    assert row.result is not None
    practice: dict[str, Json] = row.result["data"]["practice"]
    assert sum(practice["stages"].values()) >= int(used)
    assert row.step == practice["supervised_steps"] + practice["rounds"]
    [release] = await project.of_run(job)
    assert release.model == row.result["adapter"]
    assert (await project.active()).number == 1


@pytest.mark.parametrize(
    ("api", "message"),
    [
        ("ping", "NothingToPractiseError: nothing can be practised on ping"),
        ("tools", "InvalidError: tools is an MCP server"),
        ("sensor", "NotFoundError: this project has no API named 'sensor'"),
    ],
)
async def test_a_run_that_has_nothing_to_practise_fails_at_once(
    project: TrainingProject, api: str, message: str
) -> None:
    job = await project.job(**SMALL | {"environment": f"practice?api={api}"})
    assert (await project.failure(job)).startswith(message)
