"""Executes one claimed task, from its row to its trajectory: all parts of the app meet here.

Its check, its outcome and last event, what is measured of it, why it is postponed, and what is kept of one that
killed its runners. A task may also be the call of one skill, which asks no policy: the skill has the rights
that it has when an agent calls it, and the task has the limits, approvals, credentials and journal of any
other.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy.exc import DataError
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import HOSTED
from app.agent.rollout import Agent, ResumeState, StopSignal, SuspendedError, hosted_agent, run_rollout
from app.apis import trials
from app.apis.approvals.gate import ApprovalGate
from app.apis.calls.gateway import ExplorationEndedError, Gateway
from app.apis.credentials.stored_credentials import StoredCredentials
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import McpServers
from app.base import telemetry
from app.base.errors import (
    INTERNAL_ERROR,
    AdapterError,
    AppError,
    ConflictError,
    EngineError,
    EngineRefusalError,
    InvalidError,
    SandboxError,
    first_line,
    public_text,
)
from app.base.judge import NamedJudge, ask_judge
from app.base.log import mask_logs
from app.base.processes import shortage_of
from app.base.run_settings import TRAINED_TEMPERATURE
from app.base.secrets import SecretValues
from app.base.settings import Settings
from app.base.telemetry import (
    Attributes,
    Phase,
    PhaseClock,
    SpanSource,
    note,
    phase,
    phase_seconds,
    running,
    span,
    timed,
)
from app.base.values import (
    LIMITS,
    Call,
    Json,
    Offer,
    Policy,
    SkillRun,
    Stop,
    Trajectory,
    Turn,
    hosted_id,
    what_to_do,
)
from app.db import results, tables
from app.db.database import UNAVAILABLE, Sessions, direct, is_lost_connection, reading
from app.db.tables import Exploration, ReleaseState, TaskState
from app.engine.protocol import MAX_BROKEN, OpenTelling, Tokens
from app.projects import store as projects
from app.projects import usage
from app.projects.settings import ProjectSettings
from app.releases import manifest
from app.releases import store as releases
from app.releases.hosted_models import charged
from app.releases.tools import Catalogs, ProjectSecrets
from app.skills import admission, evidence, offers
from app.skills.keeping import SkillKeeping, SkillReplays, call_of
from app.skills.library import Library
from app.skills.search import OFFERED
from app.skills.selection import SkillSelection, skill_run_of
from app.tasks import calls, masking, queue, turns
from app.tasks.context import TaskContext, exploration_of, is_open, task_of
from app.tasks.journal import SentMarks, TaskJournal
from app.tasks.masking import beginning, call_fields, masked
from app.tasks.queue import TaskOutcome
from app.tasks.verification import score

log = structlog.get_logger(__name__)

SpansOf = Callable[[UUID], SpanSource]
"""The spans of a task by its id."""

_CLAIM_SECONDS = 1.0  # from the start by the database's clock to here, of a task that was not interrupted
_SANDBOX_TRIES = 3
_MAX_SANDBOX_FAILURES = 3
_PATIENCE = 0.8  # of the time of a task, or of a check, in which the waits for a `Retry-After` have to end
_MAX_DEATHS = 8  # after more, a condemned task ends without its record, which may be what kills runners
_SERVING = (ReleaseState.ACTIVE, ReleaseState.CANARY)
_MOST_CALLS = 50  # of a check that are reported
_NOTHING_DONE = "the agent ended the task without a single API call or answer"
_LIMIT_REACHED = "the task reached a limit ({}) without a single API call or answer"
_LOST = "RuntimeError: the result was not recorded: whether the call arrived is not known"


class PostponedError(Exception):
    """The task is to be handed back, and resumed after a while; its attempt does not count.

    Until then, other tasks of its project would fare the same, unless it was the sandbox. With a `shortage` of the
    host, all tasks would. `broken_answers` of a hosted model count for the task.
    """

    def __init__(
        self, cause: str, *, sandbox: bool = False, shortage: str | None = None, broken_answers: int = 0
    ) -> None:
        super().__init__(cause)
        self.sandbox = sandbox
        self.broken_answers = broken_answers
        self.shortage = shortage


@dataclass(frozen=True)
class TaskExecutor:
    """Executes tasks, with the parts that all of them share."""

    sessions: Sessions
    agent: Agent
    library: Library
    client: httpx.AsyncClient  # to the live APIs
    settings: Settings
    judge: NamedJudge | None = None  # of tasks without a check
    spans_of: SpansOf | None = None  # of traced tasks
    mcp: McpServers | None = None  # None: none is called
    marks: SentMarks | None = None
    open_hosted: OpenTelling | None = None  # None: no release has a hosted model

    async def execute(self, row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        """Roll the task out and write how it ended to its row, unless it was suspended or the owner lost it.

        Raises UNAVAILABLE if the database does not answer, PostponedError if no model server does, the adapter
        cannot be loaded, the sandbox fails or the host runs out of something; the task can then be resumed.
        """
        with _measured(row, self.spans_of):
            await _Attempt(self, row, owner, stop_signal).run()

    @timed(Phase.PROMPT)
    async def context(self, project_id: UUID, release_id: UUID | None, *, serves: bool) -> TaskContext:
        """The context of a release, or of the active one if None. `serves` records its prompt."""
        async with direct(self.sessions) as handle:
            found = await manifest.serving(handle, project_id, release_id) if release_id else None
        if found is None or (serves and found.prompt is None):
            async with self.sessions.begin() as session:
                found = await manifest.begin_serving(
                    session, project_id, release_id, self.agent.prompt_hash if serves else None
                )
        catalog = await self.catalogs.of(found.documents)
        settings = msgspec.convert(found.settings, ProjectSettings)
        policy = Policy(found.model, found.release)
        return TaskContext(policy, found.project, found.documents, catalog, settings, found.state, found.learns)

    def gateway(
        self,
        row: tables.Task,
        context: TaskContext,
        secrets: SecretValues,
        *,
        journal: TaskJournal | None = None,
        read_only: bool = False,
    ) -> Gateway:
        return Gateway(
            context.catalog,
            self.client,
            instruction=row.instruction,
            variables=row.variables,
            credentials=StoredCredentials(self.sessions, self.client, context.apis, row.principal),
            journal=journal,
            approvals=ApprovalGate(
                context.settings.approvals,
                journal.decisions if journal else (),
                partial(self._is_proven, row.project_id),
            ),
            read_only=read_only or row.repairs is not None or row.reads_only,
            is_open=None if journal is None else partial(is_open, row),
            may_end_idle=row.skill_run is not None,  # its only turn
            max_calls=self.agent.limits.calls,
            timeout=self.settings.api_timeout_seconds,
            patience=_PATIENCE
            * (self.agent.limits.seconds if journal else self.agent.limits.session.wall_seconds),
            secrets=secrets,
            store=ProjectSecrets(self.sessions, row.project_id),
            callers=mcp_callers(self.mcp, row.project_id, row.principal, self.settings.api_timeout_seconds),
        )

    async def _is_proven(self, project_id: UUID, api: str) -> bool:
        async with reading(self.sessions) as session:
            return await evidence.has_called(session, project_id, api)

    async def score(
        self,
        row: tables.Task,
        context: TaskContext,
        answer: Json,
        gateway: Gateway,
        owner: str,
        output: list[str] | None = None,
    ) -> float:
        """As `run_check`; the gateway's calls count for the project."""
        async with counted_calls(self.sessions, row.project_id, owner, gateway):
            return await run_check(row, answer, context.project, self.agent, gateway, output)

    def agent_of(self, row: tables.Task) -> Agent:
        """The agent that samples as the task does, all of it: a task explores from its first turn on or never."""
        return self._explorer if row.exploration in (Exploration.READS, Exploration.WRITES) else self.agent

    @asynccontextmanager
    async def policy_agent(
        self, row: tables.Task, policy: Policy, owner: str, journal: TaskJournal | None = None
    ) -> AsyncIterator[Agent]:
        """As `agent_of`, with the hosted model of the policy, if it is one. The end of a task counts the turns
        that its `journal` records; whatever else the model is asked counts for the project on leaving.
        """
        agent, model_id = self.agent_of(row), hosted_id(policy.model)
        if model_id is None:
            yield agent
            return
        assert self.open_hosted is not None, "a release has a hosted model"
        before = journal.used if journal else Tokens()
        recorded = (lambda: journal.used - before) if journal else None
        opened = self.open_hosted(model_id, told=journal.on_silence if journal else None)
        async with charged(opened, self.sessions, row.project_id, owner, model_id, recorded) as model:
            yield hosted_agent(agent, model)

    @cached_property
    def catalogs(self) -> Catalogs:
        return Catalogs(self.sessions)

    @cached_property
    def skill_selection(self) -> SkillSelection:
        sandbox, limits = self.agent.sandbox, self.agent.limits.session
        return SkillSelection(self.sessions, self.library, sandbox, limits, self.settings.skills_withheld)

    @cached_property
    def skill_keeping(self) -> SkillKeeping:
        return SkillKeeping(self.sessions, self.library)

    @cached_property
    def skill_replays(self) -> SkillReplays:
        return SkillReplays(self.sessions, self.agent.sandbox, self.agent.limits.session, self.client)

    @cached_property
    def _explorer(self) -> Agent:
        return replace(self.agent, temperature=TRAINED_TEMPERATURE)


class _Attempt:
    """An attempt of one claim at a task. Writes nothing more once the claim is lost."""

    def __init__(self, executor: TaskExecutor, row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        self._executor, self._sessions, self._row, self._owner = executor, executor.sessions, row, owner
        self._journal = TaskJournal(executor.sessions, row, owner, stop_signal, executor.marks)
        self._secrets = self._journal.secrets
        mask_logs(self._secrets)

    async def run(self) -> None:
        """See `TaskExecutor.execute`."""
        try:
            if queue.is_condemned(self._row):
                await self._give_up()
            else:
                await self._carry_out()
        except SuspendedError as suspended:
            log.info("a task was suspended", task=str(self._row.id), cause=str(suspended))
        except UNAVAILABLE:
            raise
        except Exception as error:  # the last resort: one bad task must not stop the others
            if is_lost_connection(error):
                raise
            await self._postpone_or_fail(error)

    async def _postpone_or_fail(self, error: Exception) -> None:
        """Raises PostponedError for what is not the task's fault."""
        task, cause = str(self._row.id), self._secrets.mask(str(error))
        if (shortage := shortage_of(error)) is not None:
            raise PostponedError(cause, shortage=shortage) from error
        if isinstance(error, AppError):
            if await self._may_go_on(error):
                broken = error.broken_answers if isinstance(error, EngineError) else 0
                raise PostponedError(
                    cause, sandbox=isinstance(error, SandboxError), broken_answers=broken
                ) from error
            log.warning("a task failed", task=task, cause=cause)
            failure = public_text(error)
        elif isinstance(error, DataError):  # of a kind that no boundary has caught before
            log.error("a task failed on a value that cannot be stored", task=task, exc_info=error)
            failure = f"a value of this task cannot be stored: {first_line(error.orig or error)}"
        else:
            log.error("a task failed on an internal error", task=task, exc_info=error)
            failure = INTERNAL_ERROR
        try:
            await self._journal.flush()
            trajectory = await self._recorded(failure)
            failed = msgspec.structs.replace(
                _outcome_of(trajectory, None, failure), state=TaskState.FAILED, stop=None
            )
            await self._finish(trajectory, failed)
        except UNAVAILABLE:
            raise
        except Exception as unrecorded:  # whatever it is, it must not keep the task from ending
            if is_lost_connection(unrecorded):
                raise
            log.error("a task fails without a trajectory", task=task, exc_info=unrecorded)
            await self._fail_unrecorded(failure)

    async def _may_go_on(self, error: AppError) -> bool:
        """Whether the task goes on once what failed works again.

        A sandbox that always fails may be the task's doing, and so may be a hosted model whose answers break off:
        each may have been billed. An adapter is loaded again while its release serves.
        """
        row = self._row
        if isinstance(error, SandboxError):
            return row.sandbox_failures < _MAX_SANDBOX_FAILURES
        if isinstance(error, AdapterError) and row.release_id is not None:
            async with self._sessions() as session:
                return (await releases.get(session, row.release_id)).state in _SERVING
        if isinstance(error, EngineError) and error.broken_answers:
            return row.broken_answers + error.broken_answers < MAX_BROKEN
        return is_passing(error)

    async def _carry_out(self) -> None:
        executor, row, journal = self._executor, self._row, self._journal
        context = await executor.context(row.project_id, row.release_id, serves=True)
        await journal.begin_attempt(
            executor.agent, executor.settings.local_model, context.policy, context.catalog.names()
        )
        trajectory = await self._explored(context)
        await journal.flush()
        failure = trajectory.detail or None
        scored: float | None = None
        if row.check_code and trajectory.stop != Stop.CANCELLED:
            try:
                scored = await self._checked(context, trajectory.answer)
            except InvalidError as error:  # a check that breaks vouches for nothing
                scored, failure = 0.0, str(error)
            except SandboxError as error:
                if shortage_of(error) is not None:  # the check runs later
                    raise
                # the answer is neither right nor wrong
                outcome = _outcome_of(trajectory, None, f"the check could not be run: {error}")
                await self._finish(trajectory, msgspec.structs.replace(outcome, state=TaskState.FAILED))
                return
        if trajectory.stop == Stop.COMPLETED and scored != 0:
            with phase(Phase.SKILLS):
                await executor.skill_keeping.keep(row, self._owner, context.catalog, trajectory, self._secrets)
                await executor.skill_replays.run(row, context.catalog, trajectory)
        outcome = _outcome_of(trajectory, scored, failure)
        if row.skill_run is not None:
            outcome = _outcome_of_call(outcome, trajectory)
        elif not (row.check_code or context.settings.verifier):
            outcome = await self._judged(outcome, trajectory)
        await self._finish(trajectory, outcome)
        if outcome.score is not None:
            telemetry.TASK_SCORES.labels(context.release.value).observe(outcome.score)

    async def _explored(self, context: TaskContext) -> Trajectory:
        """The rollout, of a task that explores if it was chosen to, until it wants a call that is not open to it.

        Raises InvalidError for one that may only read and wants more: whatever it went on to answer, it would not
        have done what it was to do.
        """
        if self._executor.agent.temperature != TRAINED_TEMPERATURE:
            how = exploration_of(self._row, context)
            if how is not None:
                await self._journal.explore(how)
        try:
            return await self._rollout(context)
        except ExplorationEndedError as ended:
            if self._row.reads_only:
                raise InvalidError(f"it may only read, and wanted to call {ended.api}") from ended
            await self._journal.begin_again(ended)
            return await self._rollout(context)

    async def _rollout(self, context: TaskContext) -> Trajectory:
        executor, row, journal = self._executor, self._row, self._journal
        task, selection = task_of(row, context.project), executor.skill_selection
        for left in reversed(range(_SANDBOX_TRIES)):
            resume = await journal.resume_state()
            gateway = executor.gateway(row, context, self._secrets, journal=journal)
            with phase(Phase.PROMPT):
                offered = await selection.select(row, resume, self._owner, context.catalog, limit=OFFERED)
                journal.offered = offered
                journal.guard = gateway.guard = await selection.guard(offered)
            try:
                async with executor.policy_agent(row, context.policy, self._owner, journal) as agent:
                    if (run := skill_run_of(row)) is not None:
                        agent, resume = await self._begin_call(run, agent, offered, resume)
                    return await run_rollout(agent, task, context.policy, gateway, offered, resume, journal)
            except SandboxError as error:
                await journal.flush()  # no later try makes these calls again
                if not left:
                    raise
                log.warning(
                    "the sandbox failed, the task continues in a new one", task=str(row.id), cause=str(error)
                )
            finally:
                await journal.report_refusals()  # also of a turn that did not end
        raise AssertionError("the last try returns or raises")

    async def _begin_call(
        self, run: SkillRun, agent: Agent, offered: Sequence[Offer], resume: ResumeState
    ) -> tuple[Agent, ResumeState]:
        """An agent that ends after the one turn that calls a skill, and the state in which that is about to run.

        Raises ConflictError if the skill cannot be offered any more.
        """
        if not offered:
            raise ConflictError(
                "the skill was withdrawn, no longer fits the APIs or does not load: see the events"
            )
        agent = replace(agent, limits=msgspec.structs.replace(agent.limits, turns=1, errors=1))
        if resume.recorded or resume.begun:
            return agent, resume
        [skill] = offered
        call = call_of(skill.source, skill.name, run.arguments)
        code = f"import json\napis.supervisor.complete_task(answer={call})"
        turn = Turn(context_ids=(), sampled_ids=(), logprobs=(), text=f"```python\n{code}\n```")
        await self._journal.on_sampled(0, turn)
        return agent, msgspec.structs.replace(resume, begun=turn)

    @timed(Phase.CHECK)
    async def _checked(self, context: TaskContext, answer: Json) -> float:
        """The score of the check. The task's events show what it did, and how it failed. Raises as `run_check`."""
        row, output = self._row, list[str]()
        gateway = self._executor.gateway(row, context, self._secrets, read_only=True)
        score: float | None = None
        error: AppError | None = None
        try:
            score = await self._executor.score(row, context, answer, gateway, self._owner, output)
        except AppError as raised:
            error = raised
        calls = gateway.take_calls()
        ended: dict[str, Json] = {
            "output": beginning(self._secrets.mask("".join(output))),
            "calls": len(calls),
            "score": score,
            "error": error and self._secrets.mask(str(error)),
        }
        made = [{**call_fields(call, self._secrets), "turn": None} for call in calls[:_MOST_CALLS]]
        events = [
            *(results.NewEvent("check", {"status": "called", **each}) for each in made),
            results.NewEvent("check", {"status": "failed" if error else "scored", **ended}),
        ]
        async with self._sessions.begin() as session:
            await results.append_all(session, row.id, events)
        if score is None:
            assert error is not None
            raise error
        return score

    async def _judged(self, outcome: TaskOutcome, trajectory: Trajectory) -> TaskOutcome:
        """The outcome with the score of the judge, or why it gave none. It decides neither about the task's state
        nor its skills. Nobody can judge whether a change in doubt was made.
        """
        judge = self._executor.judge
        if judge is None or trajectory.stop in (Stop.CANCELLED, Stop.IN_DOUBT):
            return outcome
        with phase(Phase.CHECK):
            judgement = await ask_judge(judge, masked(trajectory, self._secrets))
        if judgement.problem is not None:
            failure = outcome.failure or f"the judge gave no score: {judgement.problem}"
            return msgspec.structs.replace(outcome, failure=failure)
        if judgement.score is None:
            return outcome
        return msgspec.structs.replace(outcome, score=judgement.score, judged_by=judge.name())

    async def _give_up(self) -> None:
        """End a task that has killed its runners."""
        if self._row.lone_deaths > _MAX_DEATHS:
            await self._fail_unrecorded(_deaths(self._row, "executed this task, or recorded its end,"))
            return
        trajectory = await self._recorded()
        outcome = _outcome_of(trajectory, None, trajectory.detail)
        await self._finish(trajectory, msgspec.structs.replace(outcome, state=TaskState.FAILED))

    async def _recorded(self, failure: str | None = None) -> Trajectory:
        """Turns and calls of the journal, with the `failure` as its `detail`. None: the deaths of its runners."""
        row, agent = self._row, self._executor.agent
        async with self._sessions() as session:
            project = await projects.by_id(session, row.project_id)
            policy = Policy(release=row.release_id)
            if row.release_id is not None:
                policy = Policy((await releases.get(session, row.release_id)).model, row.release_id)
            offered = await offers.offered(session, row.id)
            known = await turns.of_task(session, row.id)
            made = await calls.of_task(session, row.id)
        done = [each.turn if each.ended else _cut_short(each, made) for each in known]
        if failure is None:
            failure = f"{_deaths(row, 'executed this task')}: given up after turn {len(done)}"
            log.error(
                "a task is given up", task=str(row.id), project=project.name, deaths=row.deaths, reason=failure
            )
        trajectory = Trajectory(
            task=task_of(row, project.name),
            policy=policy,
            profile=(agent.profile if hosted_id(policy.model) is None else HOSTED).name,
            turns=tuple(done),
            stop=Stop.CRASHED,
            detail=failure,
            offered=tuple(offered),
            temperature=self._executor.agent_of(row).temperature,
        )
        for call in trajectory.calls:
            self._secrets.note_call(call)
        return trajectory

    @timed(Phase.JOURNAL)
    async def _finish(self, trajectory: Trajectory, outcome: TaskOutcome) -> None:
        row, outcome = self._row, self._secrets.mask_value(outcome)
        end = {"stop": outcome.stop or trajectory.stop, "phases": phase_seconds()}
        trajectory = msgspec.structs.replace(trajectory, **end)
        async with self._sessions.begin() as session:
            outcome = msgspec.structs.replace(outcome, cost=await usage.of_trajectory(session, trajectory))
            if not await queue.finish(session, row.id, self._owner, outcome):
                log.warning("another runner has the task, this rollout is dropped", task=str(row.id))
                self._journal.stop_signal.lost = True
                return
            await results.save(session, row.project_id, masked(trajectory, self._secrets))
            await offers.record_uses(session, trajectory)
            if outcome.score is not None and not outcome.judged_by:
                await admission.scored(session, row.id, outcome.score)
            await self._tell_end(session, outcome)
        if self._executor.marks is not None:
            self._executor.marks.forget(row.id)
        _count_end(outcome, trajectory)

    async def _fail_unrecorded(self, failure: str) -> None:
        outcome = TaskOutcome(state=TaskState.FAILED, failure=self._secrets.mask(failure))
        async with self._sessions.begin() as session:
            if not await queue.finish(session, self._row.id, self._owner, outcome):
                self._journal.stop_signal.lost = True
                return
            await self._tell_end(session, outcome)
        _count_end(outcome)

    async def _tell_end(self, session: AsyncSession, outcome: TaskOutcome) -> None:
        """Append the last event, and mask those that came before a secret was known. Call it last before the
        commit, from which on there is no lease to renew.
        """
        await masking.mask(session, self._row.id, self._secrets)
        data: dict[str, object] = msgspec.to_builtins(outcome)
        if outcome.stop is not None:
            task = await session.get_one(tables.Task, self._row.id)
            unusable = await trials.unusable(session, task.project_id, task.release_id)
            data["what_to_do"] = what_to_do(outcome.stop, outcome.score, unusable)
        await results.append(session, self._row.id, "done", data)
        self._journal.stop_signal.released = True


def _outcome_of(trajectory: Trajectory, scored: float | None, failure: str | None) -> TaskOutcome:
    """A task that was completed, or reached a limit, without a call or an answer has failed, unless the score of
    its check says otherwise.
    """
    stop = trajectory.stop
    state = TaskState.CANCELLED if stop is Stop.CANCELLED else TaskState.DONE
    idle = not (trajectory.calls or trajectory.answer is not None or scored)
    if idle and stop is Stop.COMPLETED:
        state, stop, failure = TaskState.FAILED, Stop.NOTHING_DONE, failure or _NOTHING_DONE
    elif idle and stop in LIMITS:
        state, failure = TaskState.FAILED, failure or _LIMIT_REACHED.format(stop)
    return TaskOutcome(
        state=state,
        stop=stop,
        answer=trajectory.answer,
        failure=failure,
        score=scored,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
        calls=len(trajectory.calls),
        prompt_tokens=trajectory.prompt_tokens,
    )


def _outcome_of_call(outcome: TaskOutcome, trajectory: Trajectory) -> TaskOutcome:
    """A task that ran a skill is done once that has returned; otherwise it has failed, or was cancelled."""
    if trajectory.stop is Stop.CANCELLED:
        return outcome
    if trajectory.stop is Stop.COMPLETED:
        return msgspec.structs.replace(outcome, state=TaskState.DONE, stop=Stop.COMPLETED, failure=None)
    raised = trajectory.turns[-1].observation if trajectory.turns else ""
    failure = None if trajectory.stop in LIMITS else outcome.failure  # the limits of a run are those of one turn
    failure = failure or raised or f"the skill did not return: {trajectory.stop}"
    return msgspec.structs.replace(outcome, state=TaskState.FAILED, failure=failure)


def _deaths(row: tables.Task, doing: str) -> str:
    """
    >>> _deaths(tables.Task(lone_deaths=2, lone_kills=0), "executed this task")
    '2 runners died while they executed this task and nothing else'
    >>> _deaths(tables.Task(lone_deaths=5, lone_kills=4), "executed it").partition(", ")[2]
    '4 of them killed from outside or unnoticed'
    """
    killed = f", {row.lone_kills} of them killed from outside or unnoticed" if row.lone_kills else ""
    return f"{row.lone_deaths} runners died while they {doing} and nothing else{killed}"


def _cut_short(recorded: turns.RecordedTurn, made: list[calls.JournalCall]) -> Turn:
    """The turn during which the runner died, with the calls that it is known to have made."""
    known = [each.call for each in made if each.call is not None and each.call.turn == recorded.index]
    lost = [
        Call(seq=each.seq, turn=recorded.index, api=each.api, arguments=each.arguments, error=_LOST)
        for each in made
        if each.call is None
    ]
    return msgspec.structs.replace(recorded.turn, outcome=Stop.CRASHED.value, alive=False, calls=(*known, *lost))


async def run_check(
    row: tables.Task,
    answer: Json,
    project: str,
    agent: Agent,
    gateway: Gateway,
    output: list[str] | None = None,
) -> float:
    """The score that the task's check gives an answer. Raises as `score`."""
    return await score(
        row.check_code or "",
        answer,
        sandbox=agent.sandbox,
        gateway=gateway,
        limits=msgspec.structs.replace(agent.limits.session, project=project),
        now=row.started_at,
        output=output,
    )


def is_passing(error: AppError) -> bool:
    """Whether a model cannot be asked for now, and nothing was billed."""
    is_final = isinstance(error, EngineRefusalError)
    return isinstance(error, EngineError) and not is_final and not error.broken_answers


@asynccontextmanager
async def counted_calls(sessions: Sessions, project_id: UUID, owner: str, gateway: Gateway) -> AsyncIterator[None]:
    """At the end, however it comes about, the gateway's calls count for the project's day."""
    try:
        yield
    finally:
        if gateway.made:
            async with sessions.begin() as session:
                await usage.add(session, project_id, usage.writer_of(owner), calls=gateway.made)


def count_attempt(row: tables.Task) -> None:
    """A runner has claimed the task."""
    if queue.is_condemned(row):
        cause = "condemned"
    elif queue.is_suspect(row):
        cause = "suspect"
    else:
        cause = "first" if row.attempt <= 1 else "resumed"
    telemetry.TASK_ATTEMPTS.labels(cause).inc()


@contextmanager
def _measured(row: tables.Task, spans_of: SpansOf | None) -> Iterator[None]:
    """Everything within it is part of this attempt at the task."""
    clock = PhaseClock(spans_of(row.id) if spans_of else None)
    begun = row.started_at or row.created_at
    clock.add(Phase.QUEUE, (begun - row.created_at).total_seconds())
    since = (datetime.now(UTC) - begun).total_seconds()
    if since > _CLAIM_SECONDS:
        clock.add(Phase.INTERRUPTED, since)
    about: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "sage",
        "gen_ai.conversation.id": str(row.id),
        "sage.task.attempt": row.attempt,
    }
    with running(clock), span("invoke_agent sage", about) as opened:
        try:
            yield
        finally:
            opened.set(clock.notes)


def _count_end(outcome: TaskOutcome, trajectory: Trajectory | None = None) -> None:
    """The task of this context has ended, and its end is stored."""
    stop = outcome.stop.value if outcome.stop else "none"
    telemetry.TASK_OUTCOMES.labels(outcome.state.value, stop).inc()
    note({"sage.task.state": outcome.state.value, "sage.task.stop_reason": stop})
    seconds = phase_seconds()
    telemetry.TASK_SECONDS.observe(sum(seconds.values()))
    for name, spent in seconds.items():
        telemetry.PHASE_SECONDS.labels(name).observe(spent)
    if trajectory is not None:
        _count_trajectory(trajectory)


def _count_trajectory(trajectory: Trajectory) -> None:
    read, generated = trajectory.prompt_tokens, trajectory.generated_tokens
    note({"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": generated})
    note({"gen_ai.request.model": trajectory.policy.model})
    telemetry.TURNS.inc(len(trajectory.turns))
    telemetry.TOKENS.labels("prompt").inc(read)
    telemetry.TOKENS.labels("generated").inc(generated)
    for call in trajectory.calls:
        telemetry.API_CALLS.labels("returned" if call.error is None else "raised").inc()
    useful = {offer.name for offer in trajectory.used()}
    called = {use.function for turn in trajectory.turns for use in turn.uses if use.inherited}
    for offer in trajectory.offered:
        use = "returned" if offer.name in useful else "raised" if offer.name in called else "none"
        telemetry.SKILL_OFFERS.labels(use).inc()
