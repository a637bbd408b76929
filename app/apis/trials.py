"""Trials of APIs: which are due, a queue, and their results.

One is due for a new API, and again once its document, the weights, the prompt or the model is another one, or once
credentials are there for an API that could not be tried.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, Text, and_, case, cast, exists, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased, defer

from app.base.values import Json
from app.db import tables
from app.db.lease import DueQueue
from app.db.queries import from_now
from app.db.tables import ReleaseState, TrialState

_trial, _api, _release, _tools = tables.ApiTrial, tables.Api, tables.Release, tables.ToolSet
_credential = tables.ApiCredential
_queue = DueQueue(_trial, _trial.finished_at.is_(None), "api trials")
_FORGOTTEN = "no longer kept"
_ANEW: dict[str, Any] = {
    "state": TrialState.WAITING,
    "reason": None,
    "release_id": None,
    "questions": [],
    "finished_at": None,
    "attempt": 0,
    "owner": None,
    "lease_until": None,
}
_IS_ON = _trial.state != TrialState.OFF


class TriedTurn(msgspec.Struct, frozen=True):
    """A turn of the agent that answered a question: what it wrote, and what it was shown; both may be cut."""

    text: str
    observation: str = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a trial, and what came of it."""

    question: str
    right: Json  #: the right answer
    given: Json = None  #: the agent's; null as long as it has none
    correct: bool | None = None  #: null: it was not asked yet
    stop: str | None = None  #: why the agent stopped
    detail: str = ""
    calls: int = 0  #: to the APIs
    tokens: int = 0  #: that the model read and generated
    turns: tuple[TriedTurn, ...] = ()
    about: dict[str, Json] = {}  # the `trial_questions.Question`


class TrialScore(NamedTuple):
    """How many questions of a trial were answered right, and by which hosted model, if by one."""

    right: int
    asked: int
    hosted: str | None = None


class Made(NamedTuple):
    """The release that a trial was made with: its number and its model, as releases and as people name it.
    `outdated_by` is the number of the one that serves now, if that may answer otherwise.
    """

    release: int
    model: str
    hosted: str | None
    outdated_by: int | None


class ShownTrial(NamedTuple):
    """A trial. `made` is None for one that has not begun, or that an earlier version of this server made."""

    row: tables.ApiTrial
    made: Made | None = None

    @property
    def score(self) -> TrialScore | None:
        """None for one that is not done, or outdated."""
        row, made = self
        if row.state is not TrialState.DONE or (made is not None and made.outdated_by is not None):
            return None
        return TrialScore(row.correct, row.asked, None if made is None else made.hosted)


class TriedApi(NamedTuple):
    """The result of the trial of an API."""

    name: str
    project: str
    score: TrialScore
    made: Made | None

    @property
    def is_outdated(self) -> bool:
        return self.made is not None and self.made.outdated_by is not None


def tried_of(row: tables.ApiTrial) -> list[Tried]:
    return msgspec.convert(row.questions, list[Tried])


async def renew(
    session: AsyncSession, project_id: UUID, api_id: UUID, *, wanted: bool | None = None
) -> tables.ApiTrial:
    """Let the API be tried, again if it was. One that is not `wanted` stays off until it is; None: as before."""
    off = {**_ANEW, "state": TrialState.OFF, "finished_at": func.clock_timestamp()}
    values = {**(off if wanted is False else _ANEW), "next_at": func.clock_timestamp()}
    stored = insert(_trial).values(api_id=api_id, project_id=project_id, **values)
    where = _IS_ON if wanted is None else None
    await session.execute(stored.on_conflict_do_update(index_elements=["api_id"], set_=values, where=where))
    return await session.get_one(_trial, api_id, populate_existing=True)


async def look(session: AsyncSession, model: str, pause: float) -> None:
    """Queue what is due, by the active releases, with `model` behind them. None that ended less than `pause`
    seconds ago, unless it could not be tried for want of credentials.
    """
    now = _present(model).subquery()
    other = and_(_trial.finished_at < from_now(-pause), _IS_ON, _trial.inputs.is_distinct_from(now.c.inputs))
    connected = and_(
        _trial.finished_at.is_not(None),
        _trial.state == TrialState.NOT_TRIED,
        _trial.credentials.is_distinct_from(now.c.credentials),
    )
    due = (
        select(now.c.api_id, now.c.project_id)
        .outerjoin(_trial, _trial.api_id == now.c.api_id)
        .where(or_(_trial.api_id.is_(None), other, connected))
        .order_by(now.c.api_id)  # the order in which the rows are locked
    )
    queued = insert(_trial).from_select(["api_id", "project_id"], due)
    again = {**_ANEW, "next_at": func.clock_timestamp()}
    still = and_(_IS_ON, _trial.finished_at.is_not(None))  # others may have switched it off, or begun it
    await session.execute(queued.on_conflict_do_update(index_elements=["api_id"], set_=again, where=still))


async def any_due(session: AsyncSession) -> bool:
    due = exists().where(_trial.finished_at.is_(None), _trial.next_at <= func.clock_timestamp())
    return bool(await session.scalar(select(due)))


async def claim(session: AsyncSession, owner: str, seconds: float) -> tables.ApiTrial | None:
    """The one that is due longest, of a project with none under way."""
    return await _queue.claim_due(session, owner, seconds, per_project=1)


async def begin(session: AsyncSession, row: tables.ApiTrial, model: str, release: UUID | None = None) -> bool:
    """Record what the trial begins with, under this release; None: the active one. Whether it has begun with the
    same before, and has questions; those about something else are dropped.
    """
    now = _present(model, release).where(_api.id == row.api_id).subquery()
    found = await session.execute(select(now.c.inputs, now.c.credentials, now.c.release_id))
    inputs, credentials, release_id = found.one_or_none() or ("", "", None)
    goes_on = row.inputs == inputs and bool(row.questions)
    began = update(_trial).where(_queue.held(row.owner or "", _queue.same(row)))
    questions = row.questions if goes_on else []
    await session.execute(
        began.values(inputs=inputs, credentials=credentials, release_id=release_id, questions=questions)
    )
    return goes_on


async def save(session: AsyncSession, row: tables.ApiTrial, tried: Sequence[Tried], seconds: float) -> bool:
    """Store how far it is, and renew the claim. False, and nothing is written: it was claimed, or begun, again."""
    extended = _queue.extend(row.owner or "", seconds, _queue.same(row)).values(questions=_stored(tried))
    return await session.scalar(extended.returning(_trial.api_id)) is not None


async def finish(
    session: AsyncSession,
    row: tables.ApiTrial,
    state: TrialState,
    tried: Sequence[Tried] | None = None,
    reason: str | None = None,
) -> bool:
    """As `save`, at its end. None: the questions stay as they are."""
    questions = {} if tried is None else {"questions": _stored(tried)}
    ended = _queue.finish(row.owner or "", _queue.same(row), state=state, reason=reason, **questions)
    return await session.scalar(ended.returning(_trial.api_id)) is not None


async def go_on_later(
    session: AsyncSession, row: tables.ApiTrial, seconds: float, *, cause: str | None = None, counts: bool = False
) -> None:
    """Let it wait, with the questions that it has, for this `cause`. The attempt `counts` if it failed."""
    attempt = _trial.attempt if counts else _trial.attempt - 1
    later = {"next_at": from_now(seconds), "attempt": attempt, "reason": cause}
    await session.execute(_queue.hand_back(row.owner or "", _queue.same(row), **later))


def is_under_way(row: tables.ApiTrial) -> bool:
    """Whether a process is at it, by the clock of this host."""
    return row.owner is not None and row.lease_until is not None and row.lease_until > datetime.now(UTC)


async def hand_back(session: AsyncSession, process: str) -> None:
    """Let others go on with the process's trial at once."""
    await _queue.hand_back_unsent(session, process)


async def of_api(session: AsyncSession, api_id: UUID) -> ShownTrial | None:
    """As it is now."""
    query = _made(select(_trial)).where(_trial.api_id == api_id)
    row = (await session.execute(query.execution_options(populate_existing=True))).one_or_none()
    return None if row is None else ShownTrial(row[0], _as_made(row[1:]))


async def forget(session: AsyncSession, project_id: UUID, until: datetime) -> None:
    """Keep, of trials that ended until then, nothing but which answers were right."""
    ended = select(_trial).where(_trial.project_id == project_id, _trial.finished_at <= until)
    for row in await session.scalars(ended.order_by(_trial.api_id).with_for_update()):
        kept = [Tried(question=_FORGOTTEN, right=None, correct=each["correct"]) for each in row.questions]
        row.questions = _stored(kept)


async def of_project(session: AsyncSession, project_id: UUID) -> dict[UUID, ShownTrial]:
    """By API, without their questions."""
    query = _made(select(_trial)).where(_trial.project_id == project_id)
    rows = await session.execute(query.options(defer(_trial.questions, raiseload=True)))
    return {row.api_id: ShownTrial(row, _as_made(made)) for row, *made in rows}


async def scores(session: AsyncSession, project_id: UUID | None = None) -> dict[UUID, TriedApi]:
    """Of the trials that are done, by API; None: of all projects."""
    done = [_trial.state == TrialState.DONE, *([] if project_id is None else [_trial.project_id == project_id])]
    query = _made(select(_api.id, _api.name, tables.Project.name, _trial.correct, _trial.asked))
    query = query.join(tables.Project, tables.Project.id == _trial.project_id).where(*done)
    rows = await session.execute(query.order_by(tables.Project.name, _api.name))
    found: dict[UUID, TriedApi] = {}
    for api_id, name, project, right, asked, *about in rows:
        made = _as_made(about)
        score = TrialScore(right, asked, None if made is None else made.hosted)
        found[api_id] = TriedApi(name, project, score, made)
    return found


async def unusable(session: AsyncSession, project_id: UUID, release_id: UUID | None = None) -> list[str]:
    """The APIs that the model of this release, or of the active one, was tried with, if it could use none."""
    this = _release.id == release_id if release_id else _release.state == ReleaseState.ACTIVE
    model = await session.scalar(select(_release.model).where(_release.project_id == project_id, this))
    known = (await scores(session, project_id)).values()
    tried = [each for each in known if each.made is not None and each.made.model == model and each.score.asked > 1]
    return [] if any(each.score.right for each in tried) else [each.name for each in tried]


async def not_tried(session: AsyncSession) -> Sequence[tuple[str, str, str]]:
    """The APIs that could not be tried: name, project, and why."""
    query = select(_api.name, tables.Project.name, func.coalesce(_trial.reason, ""))
    query = query.join(_trial, _trial.api_id == _api.id).join(tables.Project, tables.Project.id == _api.project_id)
    rows = await session.execute(
        query.where(_trial.state == TrialState.NOT_TRIED).order_by(tables.Project.name, _api.name)
    )
    return [(name, project, reason) for name, project, reason in rows]


def _stored(tried: Sequence[Tried]) -> Json:
    return msgspec.to_builtins(list(tried))


def _made(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """With the columns of `Made`, of trials and their APIs."""
    was, now = aliased(_release), aliased(_release)
    had, has = aliased(_tools), aliased(_tools)
    parts = zip(_asked_with(was, had), _asked_with(now, has), strict=True)
    is_other = or_(*(before.is_distinct_from(after) for before, after in parts))
    active = and_(now.project_id == _trial.project_id, now.state == ReleaseState.ACTIVE)
    return (
        query.add_columns(was.number, was.model, was.hosted, case((is_other, now.number)))
        .select_from(_trial)
        .join(_api, _api.id == _trial.api_id)
        .outerjoin(was, was.id == _trial.release_id)
        .outerjoin(had, had.hash == was.tools)
        .outerjoin(now, active)
        .outerjoin(has, has.hash == now.tools)
    )


def _as_made(columns: Sequence[Any]) -> Made | None:
    return None if columns[0] is None else Made(*columns)


def _asked_with(release: Any, tools: Any) -> tuple[ColumnElement[Any], ...]:
    """What of a release decides how its trial of an API ends."""
    document, presentation = tools.documents[_api.name].astext, cast(tools.presentations[_api.name], Text)
    return document, presentation, release.model, release.prompt


def _present(model: str, release: UUID | None = None) -> Select[Any]:
    """Each API that this release, or its project's active one, has, with what its trial depends on."""
    parts = (*_asked_with(_release, _tools), model)
    text = func.concat_ws(" ", *(func.coalesce(part, "-") for part in parts))
    of_release = _release.state == ReleaseState.ACTIVE if release is None else _release.id == release
    held = (_credential.api_id == _api.id, _credential.principal == "", _credential.value.is_not(None))
    names = func.string_agg(_credential.scheme, aggregate_order_by(literal(" "), _credential.scheme))
    schemes = select(names).where(*held, _credential.authorized).scalar_subquery()
    token = case((_api.token.is_not(None), "token"), else_="-")
    return (
        select(
            _api.id.label("api_id"),
            _api.project_id,
            _release.id.label("release_id"),
            func.encode(func.sha256(func.convert_to(text, "UTF8")), "hex").label("inputs"),
            func.concat_ws(" ", token, schemes).label("credentials"),
        )
        .join(_release, and_(_release.project_id == _api.project_id, of_release))
        .join(_tools, _tools.hash == _release.tools)
        .where(_tools.documents[_api.name].astext.is_not(None))
    )
