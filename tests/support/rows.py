"""Rows for database tests: projects, tasks, skills, offers and trajectories."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Call, Offer, Policy, Stop, Task, Trajectory, Turn, Use
from app.db import tables
from app.db.runners import RunnerReport
from app.projects import store as projects
from app.skills import offers
from app.skills import store as skills
from app.tasks import queue
from app.tasks import store as tasks

LEASE = 30.0


async def project_row(session: AsyncSession) -> tables.Project:
    return await projects.create(session, f"project-{uuid4().hex[:8]}")


async def task_row(session: AsyncSession, project_id: UUID, instruction: str = "say hello") -> tables.Task:
    return await tasks.submit(session, project_id, tasks.NewTask(instruction=instruction))


async def claimed_task(session: AsyncSession, owner: str = "me") -> tables.Task:
    """A task of a new project, claimed by `owner`."""
    waiting = await task_row(session, (await project_row(session)).id)
    claimed = await queue.claim(session, owner, LEASE)
    assert claimed is not None
    assert claimed.id == waiting.id
    return claimed


def runner_report(id: str = "runner", **values: Any) -> RunnerReport:
    known = {"host": "here", "pid": 7, "pid_space": "this machine", "in_flight": 0, "capacity": 4}
    return RunnerReport(id=id, **{**known, "memory_bytes": 1 << 20, "sandbox": "forked", **values})


def new_skill(
    name: str = "greet", source: str = "def greet(): ...", task_id: UUID | None = None
) -> skills.NewSkill:
    return skills.NewSkill(
        name=name,
        signature=f"{name}() -> None",
        source=source,
        apis=["mail.list_mails"],
        instruction="say hello",
        task_id=task_id,
    )


def offer_of(skill: tables.Skill, **ranks: int) -> Offer:
    return msgspec.structs.replace(offers.offer_of(skill), ranks=ranks)


async def record_offers(session: AsyncSession, task_id: UUID, offered: Sequence[Offer]) -> None:
    """As the runner of a task does, also for one that nobody has claimed."""
    for position, offer in enumerate(offered, start=1):
        row = tables.SkillOffer(task_id=task_id, skill_id=offer.skill_id, position=position, ranks=offer.ranks)
        session.add(row)
    await session.flush()


def turn_of(text: str = "hello", uses: tuple[Use, ...] = (), calls: tuple[Call, ...] = ()) -> Turn:
    return Turn(context_ids=(1, 2), sampled_ids=(3,), logprobs=(-0.5,), text=text, uses=uses, calls=calls)


def trajectory_of(task: tables.Task, *turns: Turn, offered: tuple[Offer, ...] = ()) -> Trajectory:
    return Trajectory(
        task=Task(id=task.id, instruction=task.instruction, conversation=task.conversation),
        policy=Policy(release=task.release_id),
        profile="compact",
        turns=turns,
        stop=Stop.COMPLETED,
        offered=offered,
    )
