"""A project with served tasks, as the rows that the runner would have written."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.run_settings import RunKind
from app.base.values import BASE, Json, Policy, Stop, Trajectory, Turn, Use
from app.db import results, tables
from app.db.tables import RunState, TaskState
from app.engine.tokenizer import ChatTokenizer
from app.releases import store as releases
from app.skills import store as skills
from tests.support.rows import new_skill, offer_of, task_row, trajectory_of
from tests.support.scripted_engine import block

TWO_CALLS = "def {0}():\n    apis.mail.list_mails()\n    apis.mail.send_mail()\n"


def minute(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)


@dataclass
class ServedProject:
    """A project and its tasks."""

    session: AsyncSession
    project: tables.Project
    tokenizer: ChatTokenizer
    tasks: list[UUID] = field(default_factory=list)

    async def task(
        self, score: float | None = 1.0, *, used: tuple[tables.Skill, ...] = (), **columns: Any
    ) -> tables.Task:
        """Add a task of the next minute that was offered the skills `used` and used them. `columns` are its
        row's.
        """
        values = {
            "state": TaskState.DONE,
            "stop": Stop.COMPLETED,
            "score": score,
            "scenario": "greetings",
            "release_id": (await releases.active(self.session, self.project.id)).id,
            "started_at": minute(len(self.tasks)),
            "finished_at": minute(len(self.tasks) + 1),
        } | columns
        task = await task_row(self.session, self.project.id)
        self.tasks.append(task.id)
        row: tables.Task | None = await self.session.scalar(
            update(tables.Task).where(tables.Task.id == task.id).values(values).returning(tables.Task)
        )
        assert row is not None
        uses = tuple(Use(each.name, inherited=True, calls=1, returned=1) for each in used)
        await self.rollout(row, self.turn(uses=uses), used)
        return row

    async def rollout(
        self,
        row: tables.Task,
        turn: Turn,
        offered: tuple[tables.Skill, ...] = (),
        temperature: float = 1.0,
        answer: Json = None,
    ) -> Trajectory:
        """Store a task's trajectory, replacing an earlier one."""
        plain = trajectory_of(row, turn, offered=tuple(map(offer_of, offered)))
        trajectory = msgspec.structs.replace(
            plain,
            task=msgspec.structs.replace(plain.task, scenario=row.scenario),
            policy=Policy(release=row.release_id),
            stop=row.stop or Stop.COMPLETED,
            answer=answer,
            temperature=temperature,
        )
        await results.save(self.session, self.project.id, trajectory)
        return trajectory

    def turn(self, code: str = "print(1)", **more: Any) -> Turn:
        """A turn whose tokens decode to its text."""
        text = block(code)
        ids = tuple(self.tokenizer.encode(text))
        return Turn(
            **{"context_ids": (1,), "sampled_ids": ids, "logprobs": (-0.5,) * len(ids), "text": text} | more
        )

    async def skill(self, maker: tables.Task, name: str = "greet", **more: Any) -> tables.Skill:
        """Add a skill that a task made. It calls two APIs unless `source` is given."""
        new = new_skill(name, TWO_CALLS.format(name), maker.id)
        return await skills.add(self.session, maker.project_id, msgspec.structs.replace(new, **more))

    async def release(self, model: str) -> tables.Release:
        """Add the next release and activate it."""
        candidate = await releases.propose(self.session, self.project.id, model)
        return await releases.activate(self.session, candidate.id)

    async def trained(
        self, minutes: int, kind: RunKind = RunKind.LOGGED, *, started_from: str = BASE
    ) -> tables.Release:
        """The candidate of a run that began so many minutes after the first task."""
        run = tables.TrainingRun(project_id=self.project.id, kind=kind, settings={}, state=RunState.DONE)
        run.started_at, run.started_from = minute(minutes), started_from
        self.session.add(run)
        await self.session.flush()
        return await releases.propose(self.session, self.project.id, f"{minutes:04}", run.id)
