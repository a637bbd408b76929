"""Tries the APIs of projects: asks the model a few questions that the server has made, and can answer itself.

A trial only reads, both to make its questions and in its rollouts, with the project's own credentials, within few
calls. It is no task: nothing learns from it, keeps skills of it or counts it, and nobody waits for it. It goes on
only while no task waits. Any number of processes may: each trial is leased to one, one of a project at a time.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import msgspec
import structlog

from app.agent.rollout import ResumeState, run_rollout
from app.apis import store as apis
from app.apis import trial_questions, trials
from app.apis.calls.gateway import Gateway
from app.apis.catalog import App
from app.apis.credentials import store as credentials
from app.apis.trial_questions import Question, Read, Seen, first_reads, further_reads, lacks_credentials, seen_of
from app.apis.trials import Tried, TriedTurn
from app.apis.values import recordable
from app.base.errors import INTERNAL_ERROR, AppError, EngineError, EngineRefusalError, HostError
from app.base.log import mask_logs
from app.base.loop import Loop, Looping
from app.base.secrets import SecretValues
from app.base.values import Json, Stop
from app.db import tables
from app.db.database import TRANSIENT, UNAVAILABLE, Sessions
from app.db.lease import new_claim
from app.db.tables import TrialState
from app.projects import store as projects
from app.projects.settings import Limits
from app.sandbox.protocol import RefusalError
from app.tasks import queue
from app.tasks.context import TaskContext, task_of
from app.tasks.execution import TaskExecutor
from app.tasks.masking import masked
from app.tasks.store import NewTask

log = structlog.get_logger(__name__)

_PAUSE = 2.0  # seconds between polls
_LOOK = 15.0  # between looks for what is due: a new API queues its trial itself
_AGAIN = 60.0  # until another release, or model, makes an API be tried again: two of them may take turns
_LATER = 60.0  # until a trial goes on that could not
_GROWS = 10  # times as long, after each attempt at which its API failed
_LIMITED = 900.0  # until a project's limit is looked at again
_ATTEMPTS = 3
_GRACE = 120.0  # of a lease, beyond one rollout
_CALLS = 30  # of one rollout
_FAILURES = 3  # of reads, after which no other is made
_BYTES = 256 << 10  # of an answer that questions are made from
_CHARS = 4_000  # of what is kept of a turn, twice
_UNAUTHORIZED = (401, 403)
_GONE = (404, 410)
_BUSY = (408, 425, 429)
_NO_CREDENTIALS = "it has no credentials yet"


class NotTriedError(AppError):
    """Why nothing can be asked about an API, or not any more."""


class ApiFailedError(AppError):
    """How the API failed while it was asked about. The trial goes on later, and keeps what was asked."""


class ApiTrials(Looping):
    """Works on what is due while it is entered and `may` run."""

    def __init__(
        self,
        sessions: Sessions,
        executor: TaskExecutor,
        *,
        owner: str,
        may: Callable[[], bool] = lambda: True,
        pause: float = _PAUSE,
        look: float = _LOOK,
        again: float = _AGAIN,
    ) -> None:
        """`owner` is the process."""
        self._sessions, self._executor, self._may, self._owner = sessions, executor, may, owner
        agent = executor.agent
        limits = msgspec.structs.replace(agent.limits, calls=min(_CALLS, agent.limits.calls))
        self._bounded = replace(executor, agent=replace(agent, limits=limits))
        self._model, self._lease = executor.settings.model, limits.seconds + _GRACE
        self._limits = Limits.defaults(executor.settings)
        self._look, self._again, self._look_at = look, again, 0.0
        self.running = False
        self._loop = Loop("try APIs", self._next, pause, expected=TRANSIENT)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        with suppress(*TRANSIENT):  # its lease will expire
            async with self._sessions.begin() as session:
                await trials.hand_back(session, self._owner)

    async def look(self) -> None:
        """One round, from the search for what is due on."""
        self._look_at = 0.0
        await self._next()

    async def _next(self) -> float | None:
        """Return 0 if there was a trial."""
        if not self._may():
            return None
        async with self._sessions.begin() as session:
            if time.monotonic() >= self._look_at:
                await trials.look(session, self._model, self._again)
                self._look_at = time.monotonic() + self._look
            if not await trials.any_due(session) or await queue.any_waits(session, self._limits):
                return None
            row = await trials.claim(session, new_claim(self._owner), self._lease)
            if row is None:
                return None
            project = await projects.by_id(session, row.project_id)
            if await queue.exhausted(session, project, self._limits):
                await trials.go_on_later(session, row, _LIMITED)
                return 0
            api = await session.get_one(tables.Api, row.api_id, options=[apis.WITHOUT_DOCUMENT])
        self.running = True
        try:
            await self._attempt(row, api)
        finally:
            self.running = False
        return 0

    async def _attempt(self, row: tables.ApiTrial, api: tables.Api) -> None:
        try:
            if row.attempt > _ATTEMPTS:
                await self._begin(row)  # or it would be due again
                raise NotTriedError(row.reason or f"{_ATTEMPTS} processes died during it")
            await self._try(row, api)
        except NotTriedError as error:
            await self._end(row, api, TrialState.NOT_TRIED, reason=str(error))
        except EngineError as error:
            await self._wait(row, api, str(error), counts=error.broken_answers > 0)
        except AppError as error:
            await self._wait(row, api, str(error), counts=True)
        except UNAVAILABLE:
            raise
        except Exception:  # the last resort: one odd API must not stop the trials of others
            log.exception("the trial of an API failed on an internal error", api=api.name)
            await self._begin(row)
            await self._end(row, api, TrialState.NOT_TRIED, reason=INTERNAL_ERROR)

    async def _try(self, row: tables.ApiTrial, api: tables.Api) -> None:
        context = await self._executor.context(row.project_id, None, serves=True)
        goes_on = await self._begin(row, context.policy.release)
        app = context.catalog.apps.get(api.name)
        if app is None:
            raise NotTriedError("it is not among the APIs of the active release")
        trial = _Trial(self._bounded, row, context, app)
        if goes_on:
            tried = trials.tried_of(row)
        else:
            made = await self._questions(trial)
            tried = [Tried(question=each.text, right=each.right, about=msgspec.to_builtins(each)) for each in made]
        for place, each in enumerate(tried):
            if each.correct is not None:
                continue
            async with self._sessions.begin() as session:
                if not await trials.save(session, row, tried, self._lease):
                    return  # it began anew, for another document
                if not self._may() or await queue.any_waits(session, self._limits):
                    await trials.go_on_later(session, row, _PAUSE)
                    return
            try:
                tried[place] = await trial.ask(each)
            except ApiFailedError as error:
                asked = sum(each.correct is not None for each in tried)
                raise ApiFailedError(f"{asked} of {len(tried)} asked; then {error}") from error
        answered = [each for each in tried if each.correct is not None]
        if not answered:
            raise NotTriedError("what it was asked about changed meanwhile")
        await self._end(row, api, TrialState.DONE, answered)

    async def _begin(self, row: tables.ApiTrial, release: UUID | None = None) -> bool:
        """Whether it goes on with the questions that it has."""
        async with self._sessions.begin() as session:
            return await trials.begin(session, row, self._model, release)

    async def _questions(self, trial: "_Trial") -> list[Question]:
        """Raises NotTriedError if there are none."""
        async with self._sessions() as session:
            held = await credentials.usable(session, trial.row.api_id, "")
        names = frozenset(name for name, each in held.items() if each.authorized)
        token = any(each.token is not None for each in trial.context.apis if each.name == trial.app.name)
        return await trial.questions(names, has_token=token)

    async def _end(
        self,
        row: tables.ApiTrial,
        api: tables.Api,
        state: TrialState,
        tried: Sequence[Tried] | None = None,
        reason: str | None = None,
    ) -> None:
        """Without `tried`, with what was asked before."""
        async with self._sessions.begin() as session:
            ended = await trials.finish(session, row, state, tried, reason)
        if ended:
            right = sum(each.correct is True for each in tried or ())
            log.info(
                "an API was tried", api=api.name, state=state, right=right, asked=len(tried or ()), reason=reason
            )

    async def _wait(self, row: tables.ApiTrial, api: tables.Api, cause: str, *, counts: bool = False) -> None:
        if counts and row.attempt >= _ATTEMPTS:
            await self._begin(row)  # or it would be due again
            await self._end(row, api, TrialState.NOT_TRIED, reason=cause)
            return
        log.warning("the trial of an API waits", api=api.name, cause=cause)
        pause = _LATER * _GROWS ** (row.attempt - 1) if counts else _LATER
        async with self._sessions.begin() as session:
            await trials.go_on_later(session, row, pause, cause=cause, counts=counts)


class _Trial:
    """One trial: what it reads, and what it asks."""

    def __init__(self, executor: TaskExecutor, row: tables.ApiTrial, context: TaskContext, app: App) -> None:
        self.row, self.context, self.app = row, context, app
        self._executor = executor
        self._secrets = SecretValues()
        mask_logs(self._secrets)

    async def questions(self, credentials: frozenset[str], *, has_token: bool) -> list[Question]:
        """Raises NotTriedError if there are none."""
        reads = first_reads(self.app)
        if not reads:
            raise NotTriedError("nothing to ask: it has no operation that only reads and needs no arguments")
        operations = self.app.operations
        reads = [
            each
            for each in reads
            if not lacks_credentials(self.app, operations[each.operation], credentials, has_token=has_token)
        ]
        if not reads:
            raise NotTriedError(_NO_CREDENTIALS)
        seen, failures = await self._read_all(reads)
        if not seen and failures:
            error, bare = failures[0], not (credentials or has_token)
            status = error.status if isinstance(error, RefusalError) else None
            if bare and status in _UNAUTHORIZED:
                raise NotTriedError(_NO_CREDENTIALS)
            failed = self._failed(reads[0], error)
            would_again = status is not None and 400 <= status < 500 and status not in _BUSY
            raise NotTriedError(failed) if would_again else ApiFailedError(failed)
        seen += (await self._read_all(further_reads(self.app, seen)))[0]
        made = trial_questions.questions(self.app, seen, lambda text: self._secrets.mask(text) != text)
        if not made:
            empty = all(each.count == 0 or not (each.rows or each.object) for each in seen)
            what = "its lists are empty" if empty else "its answers hold nothing short that could be asked for"
            raise NotTriedError(f"nothing to ask: {what}")
        return made

    async def ask(self, tried: Tried) -> Tried:
        """The question with the answer of the agent. Without a verdict if there is no right answer any more.

        Raises ApiFailedError, and what a rollout raises.
        """
        question = msgspec.convert(tried.about, Question)
        row, policy = self._task(question.text), self.context.policy
        task, resume = task_of(row, self.context.project), ResumeState(seed=row.seed, now=datetime.now(UTC))
        try:
            async with self._executor.policy_agent(row, policy, self.row.owner or "") as agent:
                trajectory = await run_rollout(agent, task, policy, self._gateway(row), (), resume)
        except EngineRefusalError as error:
            return msgspec.structs.replace(tried, correct=False, detail=self._secrets.mask(str(error)))
        called = any(each.error is None and each.api.startswith(f"{self.app.name}.") for each in trajectory.calls)
        right, given = question.right, trajectory.answer if trajectory.stop is Stop.COMPLETED else None
        correct = called and trial_questions.answers(question, given, right)
        if not correct:  # perhaps it is another answer by now
            right = await self._right_now(question)
            correct = called and right is not None and trial_questions.answers(question, given, right)
        shown = masked(trajectory, self._secrets)
        return msgspec.structs.replace(
            tried,
            right=question.right if right is None else right,
            given=None if given is None else self._cut(shown.answer),
            correct=None if right is None else correct,
            stop=shown.stop,
            detail=shown.detail,
            calls=len(shown.calls),
            tokens=shown.prompt_tokens + shown.generated_tokens,
            turns=tuple(TriedTurn(each.full_text[:_CHARS], each.observation[:_CHARS]) for each in shown.turns),
        )

    async def _right_now(self, question: Question) -> Json:
        """None if there is none any more. Raises ApiFailedError."""
        try:
            seen = await self._read(self._gateway(self._task(question.text)), question.read)
        except HostError as error:
            if isinstance(error, RefusalError) and error.status in _GONE:
                return None
            raise ApiFailedError(self._failed(question.read, error)) from error
        return None if seen is None else trial_questions.answer_of(question, seen)

    async def _read_all(self, reads: Sequence[Read]) -> tuple[list[Seen], list[HostError]]:
        """What they answered, those with too much left out, and how the others failed."""
        gateway, seen, failures = self._gateway(self._task("")), list[Seen](), list[HostError]()
        for each in reads:
            try:
                found = await self._read(gateway, each)
            except HostError as error:
                failures.append(error)
                if len(failures) == _FAILURES:
                    break
            else:
                seen += [] if found is None else [found]
        return seen, failures

    async def _read(self, gateway: Gateway, read: Read) -> Seen | None:
        """None for an answer that is too long. Raises HostError."""
        answer = await gateway.answer_call(f"{self.app.name}.{read.operation}", [], dict(read.arguments))
        value = recordable(answer.value)
        if len(msgspec.json.encode(value)) > _BYTES:
            return None
        return seen_of(self.app, read, value, answer.next_page)

    def _gateway(self, row: tables.Task) -> Gateway:
        return self._executor.gateway(row, self.context, self._secrets, read_only=True)

    def _task(self, instruction: str) -> tables.Task:
        """A task that no table has."""
        new = NewTask(instruction=instruction)
        return tables.Task(id=uuid4(), project_id=self.row.project_id, **new.values())

    def _failed(self, read: Read, error: HostError) -> str:
        return f"its operation {read.operation} failed: {self._secrets.mask(error.message)[:500]}"

    def _cut(self, answer: Json) -> Json:
        """What is kept of an answer, which may be anything."""
        text = msgspec.json.encode(answer).decode()
        return answer if len(text) <= _CHARS else f"{text[:_CHARS]}…"
