"""Runs started by the worker's command, on one process and on two, also when one of them is killed."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from app.base.settings import Settings
from app.db import tables
from app.db.database import Sessions
from app.db.tables import RunState
from app.engine.adapter_files import WEIGHTS
from app.runs import store as runs
from tests.support.processes import command_of, descendants, gone
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.run import train
from trainer.run_job import Job
from trainer.worker.launcher import TRAIN_COMMAND, launch_run

STEPS = 12
LOGGED = {"kind": "logged", "steps": STEPS, "pairs": 1}


class RunProcesses:
    """Executes a project's runs in processes of their own, `count` for each run."""

    def __init__(self, project: TrainingProject, count: int, *, shard: bool = False) -> None:
        self.project = project
        self._count = count
        self._shard = shard

    async def finished(self, job: Job) -> tables.TrainingRun:
        """The run, after its processes have ended."""
        with pytest.MonkeyPatch.context() as environment:
            for name, value in self._environment().items():
                environment.setenv(name, value)
            await asyncio.to_thread(launch_run, job.id, self.project.settings, TRAIN_COMMAND, lambda: False)
        return await self.run(job)

    async def interrupted(self, job: Job, which: Callable[[str], bool], after: int) -> tables.TrainingRun:
        """The run, after the process that `which` selects was killed, once `after` steps were done."""
        running = asyncio.create_task(self.finished(job))
        while (await self.run(job)).step < after:
            assert not running.done(), await self.run(job)
            await asyncio.sleep(0.02)
        [victim] = [pid for pid in descendants(os.getpid()) if which(command_of(pid))]
        family = descendants(victim)
        os.kill(victim, signal.SIGKILL)
        await gone(family)
        await running
        async with self.project.sessions.begin() as session:
            await runs.requeue_expired(session)
        return await self.run(job)

    async def run(self, job: Job) -> tables.TrainingRun:
        async with self.project.sessions() as session:
            return await runs.get(session, job.id)

    def weights(self, run: tables.TrainingRun) -> dict[str, torch.Tensor]:
        assert run.result is not None, run.failure
        return load_file(self.project.settings.data_dir / "adapters" / run.result["adapter"] / WEIGHTS)

    def _environment(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.project.settings.database_url,
            "SAGE_DATA_DIR": str(self.project.settings.data_dir),
            "SAGE_MODEL": self.project.settings.model,
            "SAGE_ENGINE_DEVICE": "cpu",
            "SAGE_TRAIN_PROCESSES": str(self._count),
            "SAGE_TRAIN_SHARD": str(int(self._shard)),
            "OMP_NUM_THREADS": "1",
        }


@pytest.fixture
async def project(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    settings = Settings(model=str(tiny), data_dir=tmp_path, database_url=database_url, engine_device="cpu")
    project = await TrainingProject.open(committed, settings)
    await project.serve(1.0, 0.0, 0.5, scenarios=STEPS)
    return project


def is_leader(command: str) -> bool:
    return "trainer.worker.run_process" in command


def is_follower(command: str) -> bool:
    return "spawn_main" in command


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
async def test_an_interrupted_run_on_two_processes_ends_with_the_weights_of_one_process(
    project: TrainingProject, shard: bool
) -> None:
    alone = await train(await project.job(**LOGGED), ProgressRecorder())
    expected = load_file(project.settings.data_dir / "adapters" / alone.adapter / WEIGHTS)
    processes, job = RunProcesses(project, 2, shard=shard), await project.job(**LOGGED)
    interrupted = await processes.interrupted(job, is_leader, after=1)
    assert (interrupted.state, interrupted.attempt) == (RunState.QUEUED, 1)
    run = await processes.finished(job)
    assert (run.state, run.step, run.attempt) == (RunState.DONE, STEPS, 2), run.failure
    for name, tensor in processes.weights(run).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)


async def test_a_run_that_loses_one_of_its_processes_fails_with_that_reason(project: TrainingProject) -> None:
    run = await RunProcesses(project, 2).interrupted(await project.job(**LOGGED), is_follower, after=1)
    assert run.state is RunState.FAILED
    assert run.failure is not None
    assert run.failure.startswith("LearnerLostError: a process of this update ended")
    assert (await project.active()).number == 1
