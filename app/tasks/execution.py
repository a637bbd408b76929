"""Executes one claimed task, from its row to its trajectory: all parts of the app meet here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy.exc import DataError

from app.agent.rollout_loop import Agent, hosted_agent, run_rollout
from app.agent.stop_signal import StopSignal, SuspendedError
from app.apis.approvals.gate import ApprovalGate
from app.apis.calls.gateway import ExplorationEndedError, Gateway
from app.apis.credentials.stored_credentials import StoredCredentials
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import McpServers
from app.base.errors import AppError, EngineError, InvalidError, SandboxError, first_line, public_text
from app.base.judge import NamedJudge
from app.base.log import mask_logs
from app.base.processes import shortage_of
from app.base.run_settings import TRAINED_TEMPERATURE
from app.base.secrets import SecretValues
from app.base.settings import Settings
from app.base.telemetry import Phase, phase, phase_seconds, timed
from app.base.values import Policy, Stop, Trajectory, hosted_id
from app.db import results, suspects, tables, task_queue
from app.db.database import UNAVAILABLE, Sessions, direct, is_lost_connection, reading
from app.db.tables import Exploration, TaskState
from app.engine.protocol import OpenTelling, Tokens
from app.projects import usage
from app.projects.settings import ProjectSettings
from app.releases import manifest
from app.releases.hosted_models import charged
from app.releases.tools import Catalogs, ProjectSecrets
from app.runner.check_report import CheckReport, run_check
from app.runner.condemned import recorded_trajectory, unrecorded_failure_of
from app.runner.counted_calls import counted_calls
from app.runner.exploration import exploration_of, is_open
from app.runner.mask_trajectory import masked
from app.runner.measurement import SpansOf, count_end, count_score, measured
from app.runner.outcome import judged, outcome_of, tell_end, unchecked
from app.runner.postponed import PostponedError, is_postponed
from app.runner.sent_marks import SentMarks
from app.runner.skill_run import begin_call, run_outcome
from app.runner.task_context import TaskContext, task_of
from app.runner.task_journal import TaskJournal
from app.skills import admission, evidence, offers
from app.skills.keeping import SkillKeeping, SkillReplays
from app.skills.library import Library
from app.skills.selection import SkillSelection

log = structlog.get_logger(__name__)

_SANDBOX_TRIES = 3
_PATIENCE = 0.8  # of the time of a task, or of a check, in which the waits for a `Retry-After` have to end
_MAX_DEATHS = 8  # after more, a condemned task ends without its record, which may be what kills runners


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

    @cached_property
    def _explorer(self) -> Agent:
        return replace(self.agent, temperature=TRAINED_TEMPERATURE)

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

    async def execute(self, row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        """Roll the task out and write how it ended to its row, unless it was suspended or the owner lost it.

        Raises UNAVAILABLE if the database does not answer, PostponedError if no model server does, the adapter
        cannot be loaded, the sandbox fails or the host runs out of something; the task can then be resumed.
        """
        with measured(row, self.spans_of):
            await self._attempt(row, owner, stop_signal)

    async def _attempt(self, row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        journal = TaskJournal(self.sessions, row, owner, stop_signal, self.marks)
        mask_logs(journal.secrets)
        try:
            await self._execute(row, owner, journal)
        except SuspendedError as suspended:
            log.info("a task was suspended", task=str(row.id), cause=str(suspended))
        except UNAVAILABLE:
            raise
        except Exception as error:  # the last resort: one bad task must not stop the others
            if is_lost_connection(error):
                raise
            await self._postpone_or_fail(row, owner, error, journal)

    async def _postpone_or_fail(
        self, row: tables.Task, owner: str, error: Exception, journal: TaskJournal
    ) -> None:
        """Raises PostponedError for what is not the task's fault."""
        cause = journal.secrets.mask(str(error))
        if (shortage := shortage_of(error)) is not None:
            raise PostponedError(cause, shortage=shortage) from error
        if isinstance(error, AppError):
            if await is_postponed(self.sessions, row, error):
                broken = error.broken_answers if isinstance(error, EngineError) else 0
                raise PostponedError(
                    cause, sandbox=isinstance(error, SandboxError), broken_answers=broken
                ) from error
            log.warning("a task failed", task=str(row.id), cause=cause)
            failure = public_text(error)
        elif isinstance(error, DataError):  # of a kind that no boundary has caught before
            log.error("a task failed on a value that cannot be stored", task=str(row.id), exc_info=error)
            failure = f"a value of this task cannot be stored: {first_line(error.orig or error)}"
        else:
            log.error("a task failed on an internal error", task=str(row.id), exc_info=error)
            failure = "internal error: the server's log has the details"
        await self._fail(row, owner, failure, journal)

    async def _execute(self, row: tables.Task, owner: str, journal: TaskJournal) -> None:
        if suspects.is_condemned(row):
            await self._give_up(row, owner, journal)
            return
        context = await self.context(row.project_id, row.release_id, serves=True)
        await journal.begin_attempt(self.agent, self.settings.local_model, context.policy, context.catalog.names())
        trajectory = await self._explored(row, context, journal, owner)
        await journal.flush()
        failure = trajectory.detail or None
        scored: float | None = None
        if row.check_code and trajectory.stop != Stop.CANCELLED:
            try:
                scored = await self.score(row, context, trajectory, journal.secrets, owner, report=True)
            except InvalidError as error:  # a check that breaks vouches for nothing
                scored, failure = 0.0, str(error)
            except SandboxError as error:
                await self._finish_unchecked(row, owner, trajectory, error, journal)
                return
        if trajectory.stop == Stop.COMPLETED and scored != 0:
            with phase(Phase.SKILLS):
                await self.skill_keeping.keep(row, owner, context.catalog, trajectory, journal.secrets)
                await self.skill_replays.run(row, context.catalog, trajectory)
        outcome = run_outcome(row, outcome_of(trajectory, scored, failure), trajectory)
        if not (row.check_code or row.skill_run or context.settings.verifier):
            outcome = await judged(outcome, self.judge, trajectory, journal.secrets)
        await self._finish(row, owner, trajectory, outcome, journal)
        if outcome.score is not None:
            count_score(context.release, outcome.score)

    async def _finish_unchecked(
        self, row: tables.Task, owner: str, trajectory: Trajectory, error: SandboxError, journal: TaskJournal
    ) -> None:
        if shortage_of(error) is not None:  # the check runs later
            raise error
        await self._finish(row, owner, trajectory, unchecked(trajectory, error), journal)

    async def _give_up(self, row: tables.Task, owner: str, journal: TaskJournal) -> None:
        if row.lone_deaths > _MAX_DEATHS:
            await self._fail_unrecorded(row, owner, unrecorded_failure_of(row), journal)
            return
        trajectory = await self._recorded(row, journal)
        outcome = msgspec.structs.replace(outcome_of(trajectory, None, trajectory.detail), state=TaskState.FAILED)
        await self._finish(row, owner, trajectory, outcome, journal)

    async def _recorded(self, row: tables.Task, journal: TaskJournal, failure: str | None = None) -> Trajectory:
        made_by = self.agent.profile.name, self.agent_of(row).temperature
        trajectory = await recorded_trajectory(self.sessions, row, *made_by, failure)
        for call in trajectory.calls:
            journal.secrets.note_call(call)
        return trajectory

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

    async def _explored(
        self, row: tables.Task, context: TaskContext, journal: TaskJournal, owner: str
    ) -> Trajectory:
        """The rollout, of a task that explores if it was chosen to, until it wants a call that is not open to it.

        Raises InvalidError for one that may only read and wants more: whatever it went on to answer, it would not
        have done what it was to do.
        """
        if self.agent.temperature != TRAINED_TEMPERATURE:
            how = exploration_of(row, context)
            if how is not None:
                await journal.explore(how)
        try:
            return await self._rollout(row, context, journal, owner)
        except ExplorationEndedError as ended:
            if row.reads_only:
                raise InvalidError(f"it may only read, and wanted to call {ended.api}") from ended
            await journal.begin_again(ended)
            return await self._rollout(row, context, journal, owner)

    async def _rollout(
        self, row: tables.Task, context: TaskContext, journal: TaskJournal, owner: str
    ) -> Trajectory:
        task = task_of(row, context.project)
        for left in reversed(range(_SANDBOX_TRIES)):
            resume = await journal.resume_state()
            gateway = self.gateway(row, context, journal.secrets, journal=journal)
            limit = self.settings.skills_offered
            with phase(Phase.PROMPT):
                offered = await self.skill_selection.select(row, resume, owner, context.catalog, limit=limit)
                journal.offered = offered
                journal.guard = gateway.guard = await self.skill_selection.guard(offered)
            try:
                async with self.policy_agent(row, context.policy, owner, journal) as policy_agent:
                    agent, resume = await begin_call(policy_agent, row, offered, resume, journal)
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

    @timed(Phase.CHECK)
    async def score(
        self,
        row: tables.Task,
        context: TaskContext,
        trajectory: Trajectory,
        secrets: SecretValues,
        owner: str,
        *,
        report: bool = False,
    ) -> float:
        """With `report`, the task's events show what the check did."""
        gateway = self.gateway(row, context, secrets, read_only=True)
        shown = CheckReport(self.sessions, row.id, gateway, secrets) if report else None
        async with counted_calls(self.sessions, row.project_id, owner, gateway):
            return await run_check(row, trajectory.answer, context.project, self.agent, gateway, shown)

    @timed(Phase.JOURNAL)
    async def _finish(
        self,
        row: tables.Task,
        owner: str,
        trajectory: Trajectory,
        outcome: task_queue.TaskOutcome,
        journal: TaskJournal,
    ) -> None:
        secrets, outcome = journal.secrets, journal.secrets.mask_value(outcome)
        end = {"stop": outcome.stop or trajectory.stop, "phases": phase_seconds()}
        trajectory = msgspec.structs.replace(trajectory, **end)
        async with self.sessions.begin() as session:
            outcome = msgspec.structs.replace(outcome, cost=await usage.of_trajectory(session, trajectory))
            if not await task_queue.finish(session, row.id, owner, outcome):
                log.warning("another runner has the task, this rollout is dropped", task=str(row.id))
                journal.stop_signal.lost = True
                return
            await results.save(session, row.project_id, masked(trajectory, secrets))
            await offers.record_uses(session, trajectory)
            if outcome.score is not None and not outcome.judged_by:
                await admission.scored(session, row.id, outcome.score)
            await tell_end(session, row.id, outcome, secrets)
        if self.marks is not None:
            self.marks.forget(row.id)
        count_end(outcome, trajectory)

    async def _fail(self, row: tables.Task, owner: str, failure: str, journal: TaskJournal) -> None:
        """Keep what the task did. A value that cannot be stored, or read, must not keep it from ending."""
        try:
            await journal.flush()
            trajectory = await self._recorded(row, journal, failure)
            failed = {"state": TaskState.FAILED, "stop": None}
            outcome = msgspec.structs.replace(outcome_of(trajectory, None, failure), **failed)
            await self._finish(row, owner, trajectory, outcome, journal)
        except (AppError, DataError, msgspec.DecodeError) as error:
            log.warning("a task fails without a trajectory", task=str(row.id), cause=type(error).__name__)
            await self._fail_unrecorded(row, owner, failure, journal)

    async def _fail_unrecorded(self, row: tables.Task, owner: str, failure: str, journal: TaskJournal) -> None:
        outcome = task_queue.TaskOutcome(state=TaskState.FAILED, failure=journal.secrets.mask(failure))
        async with self.sessions.begin() as session:
            if not await task_queue.finish(session, row.id, owner, outcome):
                journal.stop_signal.lost = True
                return
            await tell_end(session, row.id, outcome, journal.secrets)
        count_end(outcome)
