"""The limits of a project's tasks: whether more are accepted, and whether those that wait may start."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import LimitError
from app.db import tables
from app.db.fair_queue import ACCEPTED
from app.db.lease import RUNNING
from app.projects import store as projects
from app.projects import usage
from app.projects.settings import Limits

_QUEUE_SECONDS = 5.0  # after which some of the waiting tasks will have been claimed


async def admit(session: AsyncSession, submitted: Mapping[UUID, int], defaults: Limits) -> None:
    """Count tasks that this transaction has added, by project. Raises LimitError: then roll them back.

    Submissions of a project are admitted one after the other, so a limit holds exactly.
    """
    for project_id, count in sorted(submitted.items()):  # in one order, so that none waits for one that waits
        await usage.add(session, project_id, usage.SUBMISSIONS, submitted=count)
        await _check(session, project_id, defaults)


async def _check(session: AsyncSession, project_id: UUID, defaults: Limits) -> None:
    project = await projects.by_id(session, project_id)
    limits = projects.settings_of(project).limits.over(defaults)
    if limits.queued_tasks is not None and await _count(session, project_id, ACCEPTED) > limits.queued_tasks:
        what = f"{project.name} would have more than {limits.queued_tasks:,} tasks waiting: submit fewer, or later"
        raise _limit_error("queued_tasks", limits.queued_tasks, what, _QUEUE_SECONDS)
    used = await usage.of_today(session, project_id)
    reached = _reached(limits, tasks_per_day=used.submitted - 1, **_of_day(used))
    if reached is not None:
        now = await usage.clock(session)
        reset, value = usage.next_day(now), getattr(limits, reached)
        what = f"{project.name} has used up the {_in_words(reached, value)} of today"
        seconds = (reset - now).total_seconds()
        raise _limit_error(reached, value, f"{what}: submit again from {reset:%Y-%m-%dT%H:%MZ}", seconds)


async def in_progress(session: AsyncSession, project_id: UUID) -> tuple[int, int]:
    """The numbers of the project's tasks that wait and that run."""
    return await _count(session, project_id, ACCEPTED), await _count(session, project_id, RUNNING)


async def exhausted(session: AsyncSession, project: tables.Project, defaults: Limits) -> str | None:
    """The limit that keeps the project's waiting tasks waiting, if one does."""
    limits = projects.settings_of(project).limits.over(defaults)
    used = await usage.of_today(session, project.id)
    running = await _count(session, project.id, RUNNING) if limits.running_tasks is not None else 0
    return _reached(limits, **_of_day(used), running_tasks=running)


def _of_day(used: usage.UsageCounts) -> dict[str, float]:
    return {
        "tokens_per_day": used.generated_tokens,
        "calls_per_day": used.calls,
        "cost_per_day": used.cost,
    }


def _in_words(name: str, value: float) -> str:
    """
    >>> _in_words("tokens_per_day", 2000), _in_words("cost_per_day", 2.5)
    ('2,000 tokens', 'cost of 2.5')
    """
    return f"cost of {value:g}" if name == "cost_per_day" else f"{value:,} {name.removesuffix('_per_day')}"


def _reached(limits: Limits, **used: float) -> str | None:
    """The first of these limits that is used up."""
    for name, count in used.items():
        limit = getattr(limits, name)
        if limit is not None and count >= limit:
            return name
    return None


async def _count(session: AsyncSession, project_id: UUID, state: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(tables.Task).where(state, tables.Task.project_id == project_id)
    return (await session.scalars(query)).one()


def _limit_error(name: str, value: float, what: str, seconds: float) -> LimitError:
    setting = f"SAGE_LIMIT_{name.upper()}"
    message = f"{what}, or ask an administrator to raise limits.{name} of the project, or {setting}"
    return LimitError(message, name=name, value=value, setting=setting, retry_after=seconds)
