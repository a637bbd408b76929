"""Trials of APIs in responses, and the routes that show one and run it again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import api_trials, apis
from app.db.api_trials import ShownTrial, Tried, TriedTurn
from app.engine.model_scope import trial_remark
from app.projects.authorization import find_project
from app.web.access import Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems

TrialStatus = Literal["waiting", "running", "done", "not_tried", "off"]


class TriedView(msgspec.Struct, frozen=True, kw_only=True):
    """A question, the right answer by the API itself, and the one that was `given`.

    `correct` is null until it was asked. `stop` is why the agent stopped, as that of a task.
    """

    question: str
    right: Json
    given: Json
    correct: bool | None
    stop: str | None
    detail: str
    calls: int  #: to APIs
    tokens: int  #: that the model read and generated
    turns: Sequence[TriedTurn] = ()  #: of the agent; at `/v1/apis/{name}/trial` alone

    @classmethod
    def of(cls, tried: Tried, *, turns: bool) -> "TriedView":
        return cls(
            question=tried.question,
            right=tried.right,
            given=tried.given,
            correct=tried.correct,
            stop=tried.stop,
            detail=tried.detail,
            calls=tried.calls,
            tokens=tried.tokens,
            turns=tried.turns if turns else (),
        )


class TrialSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the `asked` questions about an API were answered right: so far, until it is done."""

    state: TrialStatus
    right: int
    asked: int
    reason: str | None  #: why it was not tried, or waits
    remark: str | None  #: what to do, if the model cannot use the API
    release: int | None  #: the number of the release that was asked; null before, and where it is gone
    model: str | None  #: that of the release; a hosted one by its name
    outdated_by: int | None  #: the release that serves now, if it may answer otherwise: it will be asked, too
    finished_at: datetime | None

    @classmethod
    def of(cls, trial: ShownTrial | None) -> "TrialSummary":
        return TrialSummary(**_fields(trial))


class TrialView(TrialSummary, frozen=True, kw_only=True):
    """The latest trial of an API: questions that the server made of what the API answers, and put to the model.

    It is repeated when the document, the weights, the prompt or the model is another one.
    """

    questions: list[TriedView]

    @classmethod
    def full(cls, trial: ShownTrial | None, *, turns: bool = False) -> "TrialView":
        tried = [] if trial is None else api_trials.tried_of(trial.row)
        return TrialView(questions=[TriedView.of(each, turns=turns) for each in tried], **_fields(trial))


class ApiTrialController(Controller):
    path = "/apis/{name:str}/trial"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Show the trial of an API", responses=problems(400, 401, 403, 404))
    async def show_trial(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> TrialView:
        """With the turns of the agent."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        return TrialView.full(await api_trials.of_api(session, row.id), turns=True)

    @post(
        opt={"scope": "admin"},
        status_code=202,
        summary="Try an API again",
        responses=problems(400, 401, 403, 404),
    )
    async def try_again(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> TrialView:
        """Also one that was added without a trial. It begins once no task waits."""
        owner = await find_project(session, access, project)
        return TrialView.full(await renew_trial(session, owner.id, name))


async def renew_trial(session: AsyncSession, project_id: UUID, name: str) -> ShownTrial:
    """Raises NotFoundError."""
    api = await apis.get(session, project_id, name, document=False)
    row = await api_trials.renew(session, project_id, api.id, wanted=True)
    await session.commit()
    return ShownTrial(row)


def _fields(trial: ShownTrial | None) -> dict[str, Json]:
    if trial is None:  # the runner finds the API
        nothing = dict.fromkeys(("reason", "remark", "release", "model", "outdated_by", "finished_at"))
        return {"state": "waiting", "right": 0, "asked": 0, **nothing}
    row, made = trial
    score = trial.score
    return {
        "release": None if made is None else made.release,
        "model": None if made is None else made.hosted or made.model,
        "outdated_by": None if made is None or row.finished_at is None else made.outdated_by,
        "state": "running" if api_trials.is_under_way(row) else row.state.value,
        "right": row.correct,
        "asked": row.asked,
        "reason": row.reason,
        "remark": None if score is None else trial_remark(*score),
        "finished_at": row.finished_at,
    }
