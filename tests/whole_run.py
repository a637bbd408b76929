"""Whole training runs in this process: a project with work that was served, and jobs to carry out on it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, projects, releases, runs
from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from app.errors import AppError
from app.records import Json
from app.run_settings import read_settings
from app.settings import Settings
from tests.rows import project_row
from tests.served_project import ServedProject
from trainer.job import Job, RunCancelledError, run_directory
from trainer.runs.train import carry_out
from trainer.worker.failure import failure_of

SMALL = {"lora_rank": 4, "lora_alpha": 8, "gate_scenarios": 0}


class Hearer:
    """Hears how far a run is. Fulfils `Progress`; at the step `ends_at` the run is cancelled."""

    def __init__(self, ends_at: int = 0) -> None:
        self.metrics: dict[int, dict[str, Json]] = {}
        self.total = 0
        self._ends_at = ends_at

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
        self.metrics[index] = metrics
        self.total = total
        if index == self._ends_at:
            raise RunCancelledError("this run was cancelled")

    async def hold(self, session: AsyncSession) -> None:
        """Nobody else wants it."""


@dataclass
class Shop:
    """A project on a deployment."""

    sessions: Sessions
    settings: Settings
    project_id: UUID

    @classmethod
    async def open(cls, sessions: Sessions, settings: Settings) -> "Shop":
        async with sessions.begin() as session:
            return cls(sessions, settings, (await project_row(session)).id)

    async def serve(self, *scores: float | None, scenarios: int = 2, **columns: Any) -> None:
        """Tasks of each scenario that went as `scores` say; no two answers are alike."""
        tokenizer = ChatTokenizer.load(self.settings.model_dir)
        async with self.sessions.begin() as session:
            served = ServedProject(session, await projects.by_id(session, self.project_id), tokenizer)
            for number in range(scenarios):
                for score in scores:
                    row = await served.task(score, scenario=f"kind {number}", **columns)
                    await served.rollout(row, served.turn(f"print({len(served.tasks) * 11})"))

    async def job(self, **settings: Any) -> Job:
        asked = read_settings(SMALL | settings)
        async with self.sessions.begin() as session:
            run = await runs.create(session, self.project_id, asked)
        directory = run_directory(self.settings, run.id)
        directory.mkdir(parents=True)
        return Job(
            id=run.id,
            project_id=self.project_id,
            project="shop",
            settings=asked,
            directory=directory,
            deployment=self.settings,
        )

    async def active(self) -> models.Release:
        async with self.sessions() as session:
            return await releases.active(session, self.project_id)

    async def of_run(self, job: Job) -> list[models.Release]:
        """The releases that a run has left."""
        async with self.sessions() as session:
            found = await releases.of_project(session, self.project_id)
            return [each for each in found if each.training_run_id == job.id]

    async def adapters(self) -> list[models.Adapter]:
        async with self.sessions() as session:
            return list(await session.scalars(select(models.Adapter)))

    async def activate(self, model: str, base: str | None = None) -> models.Release:
        """A release of that adapter serves from now on; `base` as its row says, if it has one."""
        async with self.sessions.begin() as session:
            if base is not None:
                session.add(models.Adapter(hash=model, base=base, rank=4))
            return await releases.activate(session, (await releases.propose(session, self.project_id, model)).id)

    async def failure(self, job: Job) -> str:
        """What the run's row says after it failed. It has changed nothing that serves, and left no release."""
        before = await self.active()
        with pytest.raises(AppError) as caught:
            await carry_out(job, Hearer())
        assert (await self.active()).id == before.id
        assert await self.of_run(job) == []
        return failure_of(caught.value, job.directory)


def moved(job: Job, directory: Path) -> Job:
    """As if it had been carried out by nobody yet."""
    return msgspec.structs.replace(job, directory=directory)


def chats(path: Path) -> str:
    lines = [
        {"messages": [{"role": "user", "content": f"do {n}"}, {"role": "assistant", "content": f"did {n}"}]}
        for n in range(6)
    ]
    """A file of six short ones."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


async def interrupted(job: Job, at: int) -> None:
    """It was carried out up to step `at`."""
    with pytest.raises(RunCancelledError):
        await carry_out(job, Hearer(ends_at=at))
