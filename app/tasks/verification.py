"""How a finished task gets a score without a person: by the submitter's own Python, by the verifier of its
project, or by a judge, and how far judges agree with people.

A check runs in a session of its own. A verifier is a server: it is asked once the task ends, by any process,
until it answers or is given up. Judges are plug-ins (`base/judge`).
"""

import asyncio
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from math import sqrt
from typing import Annotated, Self
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy import and_, func, or_, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.calls.gateway import Gateway
from app.base.errors import AppError, InvalidError, NotFoundError, SandboxError
from app.base.untrusted import JsonError, decode_json
from app.base.values import GOOD, Json, ScoreSource, Trajectory
from app.db import results, tables
from app.db.database import Sessions, keys_of
from app.db.lease import DueQueue
from app.db.queries import from_now
from app.db.tables import TaskState, VerificationState
from app.projects import store as projects
from app.projects.settings import ProjectSettings
from app.projects.webhook_signing import signing_key
from app.projects.webhooks import (
    ClaimedMessages,
    PostError,
    PostTimeoutError,
    SendLimits,
    SignedPost,
    post,
    status_problem,
)
from app.sandbox.protocol import Observation, Sandbox, Session, SessionLimits
from app.sandbox.wire import HINT, NO_FUNCTIONS
from app.skills import admission

log = structlog.get_logger(__name__)

LEAST_TASKS = 30
"""That a person and the judge have scored, before its scores count at all."""

_READ = "print(float(score)) if 'score' in globals() else None"
_TRIES = 3
_PAUSE_SECONDS = 1.0  # before another try, for a machine that cannot start a session now
_PIECE_CHARS = 20_000  # of the answer in one run, which the largest message holds whatever the characters
_TURNS = 5  # the last ones, which a verifier is shown
_CHARS = 4_000  # of each text
_ANSWER_CHARS = 20_000
_VALUES, _DEPTH = 1_000, 20  # of a verifier's answer
_EVENT = "task.verify"
_MAX_ANSWER = 1 << 20  # bytes, of a verifier
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution

_task, _row = tables.Task, tables.Verification
_QUEUE = DueQueue(_row, _row.state == VerificationState.PENDING, "claim a task to verify")


async def score(
    code: str,
    answer: Json,
    *,
    sandbox: Sandbox,
    gateway: Gateway,
    limits: SessionLimits,
    now: datetime | None,
    output: list[str] | None = None,
) -> float:
    """Run a check in a session of its own. It reads `answer` and the APIs, and sets `score` in [0, 1].

    What it prints is added to `output`, also if it breaks. Raises InvalidError with the reason if the check breaks
    for whatever reason that may lie in the answer, and SandboxError if the machine can start no session.
    """
    session = await _open(sandbox, gateway, limits, now)
    try:
        for piece in _binding(answer):
            await _run(session, piece)
        await _run(session, code, output)
        printed = await _run(session, _READ)
    finally:
        await session.close()
    value = _number(printed.stdout)
    if not 0 <= value <= 1:
        raise _broken(f"it set `score` to {value:g}, which must lie between 0 and 1")
    return value


async def _open(sandbox: Sandbox, gateway: Gateway, limits: SessionLimits, now: datetime | None) -> Session:
    for left in reversed(range(_TRIES)):
        try:
            return await sandbox.open(gateway.names(), gateway.answer_call, limits, now=now)
        except SandboxError as error:
            if not left:
                raise
            log.warning("a check waits for the sandbox", cause=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def _binding(answer: Json) -> Iterator[str]:
    """Runs that bind `answer`. In pieces, because the length of code is limited, and an answer's is not here."""
    text = json.dumps(answer, ensure_ascii=False)
    yield "answer = ''"
    for start in range(0, len(text), _PIECE_CHARS):
        yield f"answer += {text[start : start + _PIECE_CHARS]!r}"
    yield "import json as _json\nanswer = _json.loads(answer)\ndel _json"


async def _run(session: Session, code: str, output: list[str] | None = None) -> Observation:
    observation = await session.run(code)
    if output is not None:
        output.append(observation.stdout)
    if observation.error is not None or not observation.alive:
        last = (observation.error or "").strip().rpartition("\n")[2].removesuffix(f"{HINT}{NO_FUNCTIONS}")
        raise _broken(last or observation.stop)
    return observation


def _number(printed: str) -> float:
    try:
        return float(printed.strip().rpartition("\n")[2])
    except ValueError:
        raise _broken("it must set `score`, to a number from 0 to 1") from None


def _broken(reason: str) -> InvalidError:
    return InvalidError(f"the check failed, so it scores 0: {reason}")


async def enqueue(session: AsyncSession, project_id: UUID, task_id: UUID) -> None:
    """Ask about a task once this transaction is committed."""
    await session.execute(insert(_row).values(project_id=project_id, task_id=task_id).on_conflict_do_nothing())


async def of_task(session: AsyncSession, task_id: UUID) -> tables.Verification | None:
    return await session.get(_row, task_id, populate_existing=True)


class VerifierOptions(SendLimits, frozen=True, kw_only=True):
    """Limits and intervals of the sender."""

    per_project: int = 4
    timeout: float = 5.0
    delays: Sequence[float] = (5, 30, 120, 600)


class VerifierAnswer(msgspec.Struct, frozen=True):
    """What a verifier answers. Other fields are ignored."""

    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None  # None: it cannot say
    reason: Annotated[str, msgspec.Meta(max_length=2_000)] | None = None


class VerifierAnswerError(ValueError):
    """The body is no answer. The message says why."""


def read_answer(body: bytes) -> VerifierAnswer:
    """Raises VerifierAnswerError.

    >>> read_answer(b'{"score": 0.5, "reason": "half of it"}')
    VerifierAnswer(score=0.5, reason='half of it')
    """
    try:
        return msgspec.convert(decode_json(body, max_values=_VALUES, max_depth=_DEPTH), VerifierAnswer)
    except (JsonError, msgspec.ValidationError) as error:
        raise VerifierAnswerError(str(error)) from error


def question(trajectory: Trajectory) -> dict[str, Json]:
    """What a verifier is told about a task: its trajectory as it is stored, without secrets, cut to size."""
    return {
        "instruction": trajectory.task.instruction,
        "conversation": trajectory.task.conversation[-_CHARS:],
        "scenario": trajectory.task.scenario,
        "stop_reason": trajectory.stop,
        "answer": _shortened(trajectory.answer),
        "turns": len(trajectory.turns),
        "last_turns": [
            {
                "text": turn.text[-_CHARS:],
                "observation": turn.observation[-_CHARS:],
                "calls": [call.api for call in turn.calls[:100]],
            }
            for turn in trajectory.turns[-_TURNS:]
        ],
    }


def _shortened(answer: Json) -> Json:
    """The answer; of a very long one the start of its JSON, as text."""
    text = msgspec.json.encode(answer).decode()
    return answer if len(text) <= _ANSWER_CHARS else text[:_ANSWER_CHARS]


class VerifierSender(ClaimedMessages[tables.Verification]):
    """Asks while it is entered. Leaving hands questions back that have no answer yet."""

    def __init__(
        self,
        sessions: Sessions,
        client: httpx.AsyncClient,
        options: VerifierOptions = VerifierOptions(),  # noqa: B008  frozen
    ) -> None:
        super().__init__("ask verifiers", sessions, _QUEUE, self._verify, options)
        self._client = client

    async def _verify(self, row: tables.Verification) -> None:
        try:
            async with self._sessions() as session:
                if not await _QUEUE.is_claimed(session, row):  # this process has stalled, and another asks
                    return
                message = await _question(session, row)
            result: VerifierAnswer | AppError = await self._ask(message)
        except AppError as error:  # also of a secret that cannot be decrypted here
            result = error
            about = {"task": str(row.task_id), "attempt": row.attempt, "cause": str(error)}
            log.warning("a task was not verified", **about)
        async with self._sessions.begin() as session:
            score = await _record(session, row, result, self.delay_after(row.attempt))
            if score is not None:
                await admission.scored(session, row.task_id, score)

    async def _ask(self, message: SignedPost) -> VerifierAnswer:
        """Raises _FailedError."""
        try:
            status, body = await post(self._client, message, seconds=self._limits.timeout, limit=_MAX_ANSWER)
        except PostTimeoutError as error:
            raise _FailedError(f"the verifier timed out: {error}") from error
        except PostError as error:
            raise _FailedError(f"the verifier failed: {error}") from error
        if (problem := status_problem(status)) is not None:
            raise _FailedError(f"the verifier failed: {problem}", final=status == HTTPStatus.GONE)
        try:
            return read_answer(body)
        except VerifierAnswerError as error:
            raise _FailedError(f"the verifier answered nonsense: {error}") from error


class _FailedError(AppError):
    """Why a verifier gave no answer. `final`: asking again is pointless."""

    def __init__(self, problem: str, *, final: bool = False) -> None:
        super().__init__(problem)
        self.final = final


async def _question(session: AsyncSession, row: tables.Verification) -> SignedPost:
    """What to send now. Raises _FailedError, and SettingError if the secret cannot be decrypted here."""
    project = tables.Project
    query = select(project.name, project.settings, project.verifier_secret).where(project.id == row.project_id)
    found = (await session.execute(query)).one_or_none()
    verifier = msgspec.convert(found.settings, ProjectSettings).verifier if found else None
    if found is None or verifier is None or found.verifier_secret is None:
        raise _FailedError("the project has no verifier any more", final=True)
    try:
        trajectory = await results.of_task(session, row.task_id)
    except NotFoundError as error:
        raise _FailedError("the trajectory of the task was deleted", final=True) from error
    data = {"project": found.name, "task_id": str(row.task_id), **question(trajectory)}
    body = msgspec.json.encode({"type": _EVENT, "timestamp": datetime.now(UTC).isoformat(), "data": data})
    key = signing_key(keys_of(session).decrypt(found.verifier_secret))
    return SignedPost(verifier.url, key, f"msg_{row.task_id.hex}", body)


async def _record(
    session: AsyncSession, row: tables.Verification, result: VerifierAnswer | AppError, retry_in: float | None
) -> float | None:
    """Record an attempt and give the task its score. Returns that if it counts now.

    A failed one is repeated in `retry_in` seconds, or with None given up. Nothing is written where the question
    was claimed again.
    """
    owner, which = row.owner or "", _QUEUE.same(row)
    await session.scalar(select(_task.id).where(_task.id == row.task_id).with_for_update())
    if isinstance(result, VerifierAnswer):
        state = VerificationState.ABSTAINED if result.score is None else VerificationState.SCORED
        change = _QUEUE.finish(owner, which, state=state, problem=None, reason=result.reason)
    elif retry_in is None or (isinstance(result, _FailedError) and result.final):
        change = _QUEUE.finish(owner, which, state=VerificationState.FAILED, problem=str(result))
    else:
        change = _QUEUE.hand_back(owner, which, next_at=from_now(retry_in), problem=str(result))
    written = await session.scalar(change.returning(_row.task_id)) is not None
    if not written or not isinstance(result, VerifierAnswer) or result.score is None:
        return None
    counts = await results.give(session, row.task_id, result.score, ScoreSource.VERIFIER)
    return result.score if counts else None


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions about the same tasks: a score of at least 0.5 is a success. `low` and `high` are the 95 % interval
    of `share` (Wilson 1927); `kappa` is Cohen's, null where both always decide the same.
    """

    tasks: int
    agreeing: int
    share: float
    low: float
    high: float
    kappa: float | None

    @classmethod
    def of(cls, *, both: int, neither: int, judge_only: int, person_only: int) -> Self:
        """Of at least one task: the numbers of those that both, neither or one of them called a success.

        >>> found = Agreement.of(both=20, neither=20, judge_only=5, person_only=5)
        >>> found.share, round(found.low, 3), round(found.high, 3), round(found.kappa or 0, 3)
        (0.8, 0.67, 0.888, 0.6)
        """
        tasks, agreeing = both + neither + judge_only + person_only, both + neither
        share = agreeing / tasks
        by_judge, by_person = (both + judge_only) / tasks, (both + person_only) / tasks
        by_chance = by_judge * by_person + (1 - by_judge) * (1 - by_person)
        middle, width = share + _Z**2 / (2 * tasks), _Z * sqrt(share * (1 - share) / tasks + (_Z / tasks / 2) ** 2)
        return cls(
            tasks=tasks,
            agreeing=agreeing,
            share=share,
            low=max((middle - width) / (1 + _Z**2 / tasks), 0.0),
            high=min((middle + width) / (1 + _Z**2 / tasks), 1.0),
            kappa=None if by_chance == 1 else (share - by_chance) / (1 - by_chance),
        )

    def suffices(self, least: float) -> bool:
        """Whether it is certainly at least `least`, and better than a judge that always says the same."""
        return self.tasks >= LEAST_TASKS and self.low >= least and (self.kappa or 0.0) > 0


async def wanted(
    session: AsyncSession,
    project_id: UUID,
    judge: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    unscored_since: datetime | None = None,
    limit: int,
) -> Sequence[UUID]:
    """The latest tasks that ended in the window without a check and that this judge has not scored, newest first.

    Those without a score but another judge's that ended at `unscored_since` or later, and those that a person
    scored, with which the judge is compared.
    """
    late = true() if unscored_since is None else _task.finished_at >= unscored_since
    by_other = _task.judged_by != judge
    unscored = and_(or_(_task.score.is_(None), and_(_task.score_source == ScoreSource.JUDGE, by_other)), late)
    compared = and_(_task.score_source == ScoreSource.PERSON, or_(_task.overruled_score.is_(None), by_other))
    query = (
        select(_task.id)
        .where(
            _task.project_id == project_id,
            _task.finished_at.is_not(None),
            _task.state == TaskState.DONE,
            func.coalesce(_task.check_code, "") == "",
            or_(unscored, compared),
        )
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(limit)
    )
    if since is not None:
        query = query.where(_task.finished_at >= since)
    if until is not None:
        query = query.where(_task.finished_at < until)
    return (await session.scalars(query)).all()


async def trusted(session: AsyncSession, project_id: UUID, judges: Iterable[str | None]) -> Container[str | None]:
    """Those of the judges from whose scores the runs of the project may learn."""
    least = projects.settings_of(await projects.by_id(session, project_id)).judge_agreement
    if not least:
        return set(judges)
    found = await agreements(session, project_id)
    return {name for name, agreement in found.items() if agreement.suffices(least)}


async def agreements(session: AsyncSession, project_id: UUID) -> Mapping[str, Agreement]:
    """By the name of the judge: of the tasks of a project that it and a person have scored."""
    judge, person = _task.overruled_score >= GOOD, _task.score >= GOOD
    counted = {
        "both": (judge, person),
        "neither": (~judge, ~person),
        "judge_only": (judge, ~person),
        "person_only": (~judge, person),
    }
    query = (
        select(_task.judged_by, *(func.count().filter(*which).label(name) for name, which in counted.items()))
        .where(
            _task.project_id == project_id,
            _task.judged_by.is_not(None),
            _task.score_source == ScoreSource.PERSON,
            _task.overruled_score.is_not(None),
        )
        .group_by(_task.judged_by)
        .order_by(_task.judged_by)
    )
    rows = (await session.execute(query)).mappings()
    return {row["judged_by"]: Agreement.of(**{name: row[name] for name in counted}) for row in rows}
