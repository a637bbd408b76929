"""Tasks that may be what their runners died of.

A task whose runner died is a suspect: its next runner executes it alone, so that the tasks that ran beside a
harmful one are cleared. If two runners die while they execute a suspect alone, and it makes no progress in
between, the suspect is condemned. Outages count against no task, nor does a stall: a runner that goes on after its
lease has expired withdraws its death.
"""

from sqlalchemy import ColumnElement, ScalarSelect, and_, case, false, func, or_, select
from sqlalchemy.orm import aliased

from app.db import models, runners
from app.db.models import TaskState

_CONDEMNING_DEATHS = 2

_task = models.Task


def is_suspect(task: models.Task) -> bool:
    """It was being executed when a runner died, so it must be executed alone."""
    return task.deaths > 0 and not is_condemned(task)


def is_condemned(task: models.Task) -> bool:
    """At least two runners died at the same turn of it, which executed nothing else: it must not run again."""
    return task.lone_deaths >= _CONDEMNING_DEATHS


def may_run(died: ColumnElement[bool]) -> ColumnElement[bool]:
    """Suspects may occupy half of the runners, and at least one. `died`: the task's runner has just been lost."""
    beside = and_(_task.deaths == 0, ~died)
    some = _in_progress() < func.greatest(1, runners.count_of_live() // 2)
    return or_(beside, _lone_deaths(died) >= _CONDEMNING_DEATHS, some)


def after_death(died: ColumnElement[bool]) -> dict[str, ColumnElement[int] | ColumnElement[bool]]:
    """The counts of a task, by whether its runner has just been lost."""
    deaths = _task.deaths + case((died, 1), else_=0)
    return {"deaths": deaths, "lone_deaths": _lone_deaths(died), "alone": alone(died)}


def without_death(*, alone: bool) -> dict[str, ColumnElement[int]]:
    """The counts of a task, without the death of a runner that turned out to be alive."""
    return {
        "deaths": func.greatest(_task.deaths - 1, 0),
        "lone_deaths": func.greatest(_task.lone_deaths - int(alone), 0),
    }


def alone(died: ColumnElement[bool] = false()) -> ColumnElement[bool]:  # noqa: B008  immutable
    """A condemned task stays marked: its next runners may die while they record its end."""
    return and_(_task.alone, _lone_deaths(died) >= _CONDEMNING_DEATHS)


def _lone_deaths(died: ColumnElement[bool]) -> ColumnElement[int]:
    return _task.lone_deaths + case((and_(_task.alone, died), 1), else_=0)


def _in_progress() -> ScalarSelect[int]:
    other = aliased(_task)
    in_progress = and_(
        other.deaths > 0,
        other.state == TaskState.RUNNING,
        other.owner.is_not(None),
        other.lease_until > func.clock_timestamp(),
    )
    return select(func.count()).select_from(other).where(in_progress).scalar_subquery()
