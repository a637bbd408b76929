"""Routes for judges: how far they agree with people."""

import msgspec
from litestar import Controller, get

from app.db import judgements
from app.project.agreement import LEAST_TASKS, Agreement
from app.projects import store as projects
from app.projects.authorization import find_project
from app.web.access import Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems


class JudgeView(msgspec.Struct, frozen=True):
    """A judge with its options and the project's rubric: others have another name."""

    judge: str
    agreement: Agreement
    trusted: bool  #: runs learn from its scores


class AgreementView(msgspec.Struct, frozen=True):
    """`least` is the project's `judge_agreement`, which the lower bound of the interval must reach."""

    least: float
    least_tasks: int
    judges: list[JudgeView]


class JudgeController(Controller):
    path = "/judge"
    tags = ("Feedback",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get("/agreement", summary="Compare judges with people", responses=problems(400, 401, 403, 404))
    async def agreement(self, session: Db, access: Caller, project: ProjectName = None) -> AgreementView:
        """Of the tasks that both a judge and a person have scored. A judge that always says the same is not
        trusted, however often that is right: its `kappa` is 0 or null.
        """
        owner = await find_project(session, access, project)
        least = projects.settings_of(owner).judge_agreement
        found = await judgements.agreements(session, owner.id)
        judges = [JudgeView(name, each, not least or each.suffices(least)) for name, each in found.items()]
        return AgreementView(least, LEAST_TASKS, judges)
