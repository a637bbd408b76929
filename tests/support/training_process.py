"""A simulated training run, in a process of its own: `python -m tests.support.training_process RUN_ID`.

`settings.data` selects what happens to it; each start and each end adds a line to the run's notes.
"""

import asyncio
import errno
import os
import signal
import sys
import time

import psycopg

from app.base.errors import InvalidError
from trainer.run_job import Job, Result, RunProgress
from trainer.worker.run_process import main

PAUSE = 0.1  # seconds per step


async def simulate(job: Job, progress: RunProgress) -> Result:
    _note(job, "began")
    (job.directory / "adapters").mkdir(exist_ok=True)
    (job.directory / "learner.checkpoint").touch()
    for index in range(1, job.settings.steps + 1):
        progress.part("rollouts", index, job.settings.steps)
        await asyncio.sleep(PAUSE)
        await progress.step(index, job.settings.steps, {"reward": index / 10})
        _misbehave(job, index)
    _note(job, "ended")
    return Result(adapter="f00d", decision="waiting", evidence={"attempt": job.attempt, "project": job.project})


def _misbehave(job: Job, index: int) -> None:
    match job.settings.data:
        case "invalid":
            raise InvalidError("no scored tasks in the window: attach a check or send feedback")
        case "defect":
            raise TypeError("that was not meant")
        case "full disk":
            raise OSError(errno.ENOSPC, "No space left on device", str(job.directory / "checkpoint"))
        case "killed":
            sys.stderr.write("written just before\n")
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed once" if job.attempt == 1 and index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        case "taken over" if index == job.settings.steps:
            with psycopg.connect(job.deployment.database_url.replace("+psycopg", "")) as connection:
                connection.execute("UPDATE training_runs SET owner = 'another' WHERE id = %s", [job.id])
        case "deaf" if index == 2:
            time.sleep(60)  # blocks the event loop, as a long update does


def _note(job: Job, what: str) -> None:
    with (job.directory / "notes.log").open("a") as notes:
        notes.write(f"{what} {job.attempt} {os.getpid()}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], simulate))
