"""A project with served tasks, and training runs on it in this process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError
from app.base.run_settings import read_settings
from app.base.settings import Settings
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.releases import store as releases
from app.runs import store as runs
from tests.support.rows import project_row
from tests.support.served_project import ServedProject
from trainer.run import train
from trainer.run_job import Job, RunCancelledError, run_directory
from trainer.worker.run_process import describe_failure

SMALL = {"lora_rank": 4, "gate_scenarios": 0}

ONE_TURN = {"max_turns": 1, "max_turn_tokens": 8, "retrieval": "query_ngram", "prompt_profile": "compact"}
"""Settings for rollouts that only have to end soon."""


def on_this_machine(model: Path, data_dir: Path, database_url: str, **settings: object) -> Settings:
    """A deployment without a GPU."""
    given = Settings(model=str(model), data_dir=data_dir, database_url=database_url, engine_device="cpu")
    return msgspec.structs.replace(given, **settings)


class ProgressRecorder:
    """Records the progress of a run and cancels it at step `ends_at`. Implements `RunProgress`."""

    def __init__(self, ends_at: int = 0) -> None:
        self.metrics: dict[int, dict[str, Json]] = {}
        self.total = 0
        self.parts: list[tuple[str, int, int]] = []
        self._ends_at = ends_at

    def part(self, phase: str, done: int, total: int) -> None:
        self.parts.append((phase, done, total))

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
        self.metrics[index] = metrics
        self.total = total
        if index == self._ends_at:
            raise RunCancelledError("this run was cancelled")

    async def hold(self, session: AsyncSession) -> None:
        """Nothing else claims the run."""


@dataclass
class TrainingProject:
    """A project on a deployment."""

    sessions: Sessions
    settings: Settings
    project_id: UUID

    @classmethod
    async def open(cls, sessions: Sessions, settings: Settings) -> "TrainingProject":
        async with sessions.begin() as session:
            return cls(sessions, settings, (await project_row(session)).id)

    async def serve(self, *scores: float | None, scenarios: int = 2, **columns: Any) -> None:
        """Add tasks of each scenario with these scores; no two answers are equal."""
        tokenizer = ChatTokenizer.load(self.settings.model_dir)
        async with self.sessions.begin() as session:
            served = ServedProject(session, await projects.by_id(session, self.project_id), tokenizer)
            for number in range(scenarios):
                for score in scores:
                    row = await served.task(score, **_kind(number) | columns)
                    turn = served.turn(f"print({len(served.tasks) * 11})")
                    await served.rollout(row, turn, answer="hello")

    async def job(self, **settings: Any) -> Job:
        run_settings = read_settings(SMALL | settings)
        async with self.sessions.begin() as session:
            run = await runs.create(session, self.project_id, run_settings)
        directory = run_directory(self.settings, run.id)
        directory.mkdir(parents=True)
        return Job(
            id=run.id,
            project_id=self.project_id,
            project="shop",
            settings=run_settings,
            directory=directory,
            deployment=self.settings,
        )

    async def active(self) -> tables.Release:
        async with self.sessions() as session:
            return await releases.active(session, self.project_id)

    async def of_run(self, job: Job) -> list[tables.Release]:
        """The releases that a run proposed."""
        async with self.sessions() as session:
            every = await releases.of_project(session, self.project_id)
            return [each for each in every if each.training_run_id == job.id]

    async def learned(self, job: Job) -> tuple[str | None, int]:
        """The model that a run continued, and the number of tasks that it learned from, as they were recorded."""
        tasks = select(func.count()).where(tables.RunTask.run_id == job.id)
        async with self.sessions() as session:
            run = await runs.get(session, job.id)
            return run.started_from, await session.scalar(tasks) or 0

    async def rate(self, job: Job) -> float | None:
        """At which a run learns, as it was recorded."""
        async with self.sessions() as session:
            return (await runs.get(session, job.id)).learning_rate

    async def adapters(self) -> list[tables.Adapter]:
        async with self.sessions() as session:
            return list(await session.scalars(select(tables.Adapter)))

    async def activate(self, model: str, base: str | None = None) -> tables.Release:
        """Activate a release of that adapter, with a row for the adapter if its base is given."""
        async with self.sessions.begin() as session:
            if base is not None:
                session.add(tables.Adapter(hash=model, base=base, rank=4))
            return await releases.activate(session, (await releases.propose(session, self.project_id, model)).id)

    async def failure(self, job: Job) -> str:
        """The failure of a run, which has left no release and the active one as it was."""
        before = await self.active()
        with pytest.raises(AppError) as caught:
            await train(job, ProgressRecorder())
        assert (await self.active()).id == before.id
        assert await self.of_run(job) == []
        return describe_failure(caught.value, job.directory)


def _kind(number: int) -> dict[str, Any]:
    return {"scenario": f"kind {number}", "instruction": f"say hello to number {number}"}


def moved(job: Job, directory: Path) -> Job:
    """The job as on its first attempt."""
    return msgspec.structs.replace(job, directory=directory)


def chats(path: Path) -> str:
    """Write six short chats to a file."""
    lines = [
        {"messages": [{"role": "user", "content": f"do {n}"}, {"role": "assistant", "content": f"did {n}"}]}
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


async def interrupted(job: Job, at: int) -> None:
    """Run the job up to step `at`, and cancel it there."""
    with pytest.raises(RunCancelledError):
        await train(job, ProgressRecorder(ends_at=at))
