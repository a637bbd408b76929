"""Tasks that may be what their runners died of.

A task whose runner died is a suspect: its next runner executes it alone, so that the tasks that ran beside a
harmful one are cleared. If runners die while they execute a suspect alone, and it makes no progress in between,
the suspect is condemned: by two that ended by themselves, stuck, crashed or too large, or by five in all. Others
were killed from outside, or nobody knows how they ended. Outages count against no task, nor does a stall: a runner
that goes on after its lease has expired withdraws its death.
"""

from sqlalchemy import ColumnElement, ScalarSelect, and_, case, false, func, or_, select
from sqlalchemy.orm import aliased

from app.db import runners, tables
from app.db.tables import TaskState

_CONDEMNING_ENDS = 2  # of runners by themselves
_CONDEMNING_DEATHS = 5  # whatever their cause

_task = tables.Task


def is_suspect(task: tables.Task) -> bool:
    """It was being executed when a runner died, so it must be executed alone."""
    return task.deaths > 0 and not is_condemned(task)


def is_condemned(task: tables.Task) -> bool:
    """Enough runners died at the same turn of it, which executed nothing else: it must not run again."""
    ends = task.lone_deaths - task.lone_kills
    return ends >= _CONDEMNING_ENDS or task.lone_deaths >= _CONDEMNING_DEATHS


def may_run(died: ColumnElement[bool]) -> ColumnElement[bool]:
    """Suspects may occupy half of the runners, and at least one. `died`: the task's runner has just been lost."""
    beside = and_(_task.deaths == 0, ~died)
    some = _in_progress() < func.greatest(1, runners.count_of_live() // 2)
    return or_(beside, _condemned(died, killed=True), some)


def after_death(died: ColumnElement[bool], *, killed: bool) -> dict[str, ColumnElement[int] | ColumnElement[bool]]:
    """The counts of a task, by whether its runner has just been lost, and whether it was killed from outside, as
    far as anybody knows.
    """
    return {
        "deaths": _task.deaths + case((died, 1), else_=0),
        "lone_deaths": _lone_deaths(died),
        "lone_kills": _lone_kills(died, killed=killed),
        "alone": alone(died, killed=killed),
    }


def without_death(*, alone: bool) -> dict[str, ColumnElement[int]]:
    """The counts of a task, without the death of a runner that turned out to be alive: nobody knew its cause."""
    return {
        "deaths": func.greatest(_task.deaths - 1, 0),
        "lone_deaths": func.greatest(_task.lone_deaths - int(alone), 0),
        "lone_kills": func.greatest(_task.lone_kills - int(alone), 0),
    }


def alone(died: ColumnElement[bool] = false(), *, killed: bool = True) -> ColumnElement[bool]:  # noqa: B008  immutable
    """A condemned task stays marked: its next runners may die while they record its end."""
    return and_(_task.alone, _condemned(died, killed=killed))


def _condemned(died: ColumnElement[bool], *, killed: bool) -> ColumnElement[bool]:
    deaths = _lone_deaths(died)
    return or_(
        deaths - _lone_kills(died, killed=killed) >= _CONDEMNING_ENDS,
        deaths >= _CONDEMNING_DEATHS,
    )


def _lone_deaths(died: ColumnElement[bool]) -> ColumnElement[int]:
    return _task.lone_deaths + case((and_(_task.alone, died), 1), else_=0)


def _lone_kills(died: ColumnElement[bool], *, killed: bool) -> ColumnElement[int]:
    return _task.lone_kills + case((and_(_task.alone, died), int(killed)), else_=0)


def _in_progress() -> ScalarSelect[int]:
    other = aliased(_task)
    in_progress = and_(
        other.deaths > 0,
        other.state == TaskState.RUNNING,
        other.owner.is_not(None),
        other.lease_until > func.clock_timestamp(),
    )
    return select(func.count()).select_from(other).where(in_progress).scalar_subquery()
