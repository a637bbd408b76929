"""The first page: is it learning, what does it do now, what has it saved, and what needs a person?"""

from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.params import QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import ANY_KEY, Db
from app.api.feedback import WantedFeedback, wanted_feedback
from app.console import learning
from app.console.csv_file import csv_file
from app.console.learning import Learning
from app.console.visit import Visit, Visitor, page
from app.db import (
    api_trials,
    approvals,
    quotas,
    releases,
    skill_savings,
    skills,
    tables,
    task_outcomes,
    tasks,
    usage,
)
from app.db.skill_savings import ScenarioSavings
from app.db.tables import ApprovalState, ReleaseState, SkillState
from app.db.task_outcomes import FailingKind

_SHOWN = 5  # of a list
_LATEST = 8  # tasks
_TRIED = (ReleaseState.CANDIDATE, ReleaseState.PASSED, ReleaseState.CANARY)
_COLUMNS = ("start", "tasks", "failed", "scored", "succeeded", "success", "turns", "generated_tokens", "seconds")

Days = Annotated[int, QueryParameter(ge=1, le=365)]


class Wanted(msgspec.Struct, frozen=True):
    """What needs a person: the first ones, and how many. Empty where the key lacks the scope to do it."""

    approvals: list[tables.Approval] = []
    all_approvals: int = 0
    candidates: list[tables.Release] = []
    quarantined: list[tables.Skill] = []
    all_quarantined: int = 0
    failing: list[FailingKind] = []
    unusable: list[str] = []  # the APIs that were tried, if the model that serves can use none of them
    feedback: list[WantedFeedback] = []


class HomePages(Controller):
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor, session: Db, days: Days = 30) -> Response[str]:
        if visit.chosen is None or not visit.allows("tasks"):
            return page(visit, "home_empty.html")
        owner = visit.chosen.id
        return page(
            visit,
            "home.html",
            days=days,
            learning=await learning.of_project(session, owner, visit.now, days),
            **await _now(session, owner),
            cost=sum(each.cost for each in await usage.of_days(session, owner, days)),
            savings=await skill_savings.by_scenario(session, owner, visit.now - timedelta(days=days)),
            total=_total,
            wanted=await _wanted(session, visit),
        )

    @get("/now", opt={"scope": "tasks"})
    async def now(self, visit: Visitor, session: Db) -> Response[str]:
        """The part of the page that changes while somebody looks."""
        return page(visit, "home_now.html", **await _now(session, visit.project.id))

    @get("/learning.csv", opt={"scope": "tasks"})
    async def learning_file(self, visit: Visitor, session: Db, days: Days = 30) -> Response[str]:
        found: Learning = await learning.of_project(session, visit.project.id, visit.now, days)
        rows = [[getattr(row, name) for name in _COLUMNS] for row in found.rows]
        return csv_file(f"{visit.project.name}-learning", _COLUMNS, rows)


async def _now(session: AsyncSession, project_id: UUID) -> dict[str, Any]:
    queued, running = await quotas.in_progress(session, project_id)
    latest = await tasks.page(session, tasks.TaskFilter(project_id=project_id), limit=_LATEST)
    return {"queued": queued, "running": running, "latest": latest.items}


def _total(savings: list[ScenarioSavings], measure: str) -> float:
    return skill_savings.total(savings, measure)


async def _wanted(session: AsyncSession, visit: Visit) -> Wanted:
    owner = visit.project.id
    waiting = approvals.ApprovalFilter(project_id=owner, state=ApprovalState.WAITING)
    held = skills.SkillFilter(project_id=owner, state=SkillState.QUARANTINED)
    found: dict[str, Any] = {
        "failing": await task_outcomes.failing_kinds(session, owner, _SHOWN),
        "unusable": await api_trials.unusable(session, owner),
        "feedback": await wanted_feedback(session, owner, _SHOWN),
    }
    if visit.allows("approvals"):
        found["approvals"] = (await approvals.page(session, waiting, limit=_SHOWN)).items
        found["all_approvals"] = await approvals.count_waiting(session, owner)
    if visit.allows("skills"):
        found["quarantined"] = (await skills.page(session, held, limit=_SHOWN)).items
        found["all_quarantined"] = await skills.count(session, held)
    if visit.allows("admin"):
        known = await releases.of_project(session, owner)
        found["candidates"] = [row for row in known if row.state in _TRIED]
    return Wanted(**found)
