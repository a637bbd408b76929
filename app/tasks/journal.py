"""Records a running task, so that another process can resume it: its turns and calls, events and approvals.

Marks of calls that went out are on this machine's disk: a killed runner cannot tell the database any more.
Without contact to the database, nothing is known about other runners.
"""

import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self
from uuid import UUID

import msgspec
import structlog

from app.agent.prompts import hosted_prompt, prompt_of
from app.agent.rollout import Agent, ResumeState, RolloutHooks, StopSignal, SuspendedError
from app.apis import trials
from app.apis.approvals import store as approvals
from app.apis.approvals.gate import ApprovalDecision, ApprovalRequest, shown_call
from app.apis.calls.gateway import ExplorationEndedError
from app.apis.calls.recorded_calls import InDoubtError
from app.apis.calls.skill_guard import SkillGuard
from app.apis.credentials.credential import mask
from app.base.errors import ConflictError, first_line
from app.base.files import remove_old
from app.base.secrets import SecretValues
from app.base.telemetry import Phase, timed
from app.base.values import Call, Json, Offer, Policy, Turn, hosted_id
from app.db import lease, results, tables
from app.db.database import TRANSIENT, Sessions, direct, reading, retry_while_unavailable
from app.db.tables import Exploration
from app.engine.model_scope import ModelScope
from app.engine.protocol import Tokens
from app.skills import moves, offers
from app.tasks import calls, masking, queue, turns
from app.tasks.masking import call_fields

_GAPS = 3  # a gap of this fraction of a lease may have let leases expire


def boot_time() -> float:
    """On Linux, this clock goes on while the machine sleeps, as the database's does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class DatabaseContact:
    """Leases that expire during an outage, or while the machine sleeps, prove nothing about their owners.

    Until contact has lasted for as long as a lease, their owners may be alive and about to renew them.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float] = boot_time) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._since = self._latest = clock()

    def confirm(self) -> None:
        """Call it whenever the database has answered; it begins anew after a gap."""
        now = self._clock()
        if now - self._latest > self._lease / _GAPS:
            self._since = now
        self._latest = now

    @property
    def is_proof(self) -> bool:
        """An owner whose lease is expired now had the time to renew it, and did not."""
        now = self._clock()
        return now - self._latest <= self._lease / _GAPS and now - self._since >= self._lease


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BEGUN, _SENT = b"b", b"s"


class _Mark(msgspec.Struct, array_like=True, frozen=True):
    boot: str
    seq: int
    sealed: bytes


class SentMarks:
    """A file for each task, of its latest call that must not be repeated: whether a byte of it may have left.

    What a killed process wrote is there, so that whoever goes on with its task knows the call was not sent. What a
    machine wrote before it crashed may not be: marks of an earlier boot count for nothing.
    """

    def __init__(self, directory: Path, boot: str) -> None:
        self._directory, self._boot = directory, boot

    @classmethod
    def open(cls, directory: Path) -> Self | None:
        """None where no marks can be kept: then the call that a killed runner began is in doubt."""
        try:
            boot = _BOOT.read_text().strip()
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        remove_old(directory)
        return cls(directory, boot)

    def begin(self, task_id: UUID, seq: int, sealed: bytes) -> None:
        """Call before the row of the call is committed. Without room on the disk there is no mark."""
        content = _BEGUN + msgspec.msgpack.encode(_Mark(self._boot, seq, sealed))
        try:
            self._path(task_id).write_bytes(content)
        except OSError:
            self.forget(task_id)

    def sent(self, task_id: UUID) -> None:
        """Call before the first byte leaves. Raises OSError if that cannot be marked: then nothing may be sent."""
        try:
            file = os.open(self._path(task_id), os.O_WRONLY)
        except FileNotFoundError:
            return
        try:
            os.pwrite(file, _SENT, 0)
        finally:
            os.close(file)

    def unsent(self, task_id: UUID) -> tuple[int, bytes] | None:
        """The call, by its number and its sealed arguments, that began and of which no byte has left."""
        try:
            content = self._path(task_id).read_bytes()
            mark = msgspec.msgpack.decode(content[1:], type=_Mark)
        except (OSError, msgspec.DecodeError):
            return None
        is_unsent = content.startswith(_BEGUN) and mark.boot == self._boot
        return (mark.seq, mark.sealed) if is_unsent else None

    def forget(self, task_id: UUID) -> None:
        with suppress(OSError):
            self._path(task_id).unlink()

    def _path(self, task_id: UUID) -> Path:
        return self._directory / str(task_id)


log = structlog.get_logger(__name__)

_BATCH_SECONDS = 1.0  # repeatable calls are held this long to be written in one batch
_MOST_REMARKS = 20  # of a task, about a hosted model that does not answer
_DIED = "its runner died or stalled"
_CUT_OFF = "its runner was shut down, or lost the database,"
_SENDING_SECONDS = 2.0  # for which nobody else can claim the task, from the confirmation of the claim on


class TaskJournal(RolloutHooks):
    """Records the rollout's turns and the gateway's calls. A call that must not be repeated is committed right
    before its request is written, and not at all if it is not sent.

    Writes raise ConflictError once the task was claimed again, except for results of calls that went out. `owner`
    is the claim. Events are masked with `secrets`.
    """

    def __init__(
        self,
        sessions: Sessions,
        task: tables.Task,
        owner: str,
        stop_signal: StopSignal,
        marks: SentMarks | None = None,
    ) -> None:
        super().__init__(stop_signal)
        self._marks = marks
        self.secrets = SecretValues()
        masking.note(self.secrets, task)
        self.offered: tuple[Offer, ...] = ()  # skills whose uses become events
        self.guard = SkillGuard({})  # of these skills
        self.decisions: Sequence[ApprovalDecision] = ()  # about calls of earlier attempts
        self._sessions = sessions
        self._task = task
        self._owner = owner
        self._lost: dict[int, calls.JournalCall] = {}
        self._in_doubt = False  # a call of this attempt is
        self._has_answered = False  # the policy, since it was last waited for
        self.used = Tokens()  # by the turns of a hosted model that this attempt recorded
        self._outgoing: _Outgoing | None = None  # the call in flight, if it must not be repeated
        self._unwritten: list[Call] = []  # calls that have returned and were repeatable, or not sent
        self._written = time.monotonic()
        self._confirmed = (
            -_SENDING_SECONDS
        )  # when it was certain that the task is ours, on the clock of the machine

    @timed(Phase.JOURNAL)
    async def resume_state(self) -> ResumeState:
        """Read what earlier attempts recorded, with the seed and the clock that all attempts share."""
        async with direct(self._sessions) as handle:
            if not await turns.resumes(handle, self._task.id):
                return ResumeState(seed=self._task.seed, now=self._task.started_at)
        if self._marks is not None and (unsent := self._marks.unsent(self._task.id)) is not None:
            async with direct(self._sessions) as handle:
                await calls.undo(handle, self._task.id, *unsent)
        async with reading(self._sessions) as session:
            recorded = await turns.of_task(session, self._task.id)
            made = await calls.of_task(session, self._task.id)
            self.decisions = await approvals.decisions(session, self._task.id)
        self._lost = {each.seq: each for each in made if each.call is None}
        masking.note(self.secrets, self._task, recorded, made)
        begun = recorded[-1] if recorded and not recorded[-1].ended else None
        known = tuple(
            each.call for each in made if begun and each.call is not None and each.call.turn == begun.index
        )
        return ResumeState(
            seed=self._task.seed,
            now=self._task.started_at,
            recorded=tuple(each.turn for each in recorded if each.ended),
            begun=begun.turn if begun else None,
            known=known,
        )

    @timed(Phase.JOURNAL)
    async def begin_attempt(
        self, agent: Agent, model: str, policy: Policy, apis: Mapping[str, Collection[str]]
    ) -> None:
        """Report, as events, which of the project's APIs, given with their operations, the policy could not use in
        their trials or, as far as they were not tried, that `model`, as SAGE_MODEL names it, was not made for; and
        that the task goes on under another prompt than it began under. A hosted policy was made for any, and its
        task begins under a prompt of its own.
        """
        is_hosted = hosted_id(policy.model) is not None
        scope = ModelScope() if is_hosted else ModelScope.of(model, agent.tokenizer.card)
        if is_hosted:
            async with self._sessions.begin() as session:
                began = await queue.record_prompt(session, self._task.id, self._owner, hosted_prompt())
            self._task.prompt = began
        if (remark := scope.remark(apis, await self._tried(policy.model))) is not None:
            async with self._sessions.begin() as session:
                await lease.hold(session, self._task.id, self._owner)
                if not await results.has(session, self._task.id, "remark"):
                    await results.append(session, self._task.id, "remark", {"text": remark})
        was, now = self._task.prompt, prompt_of(policy.model, agent.prompt_hash)
        if was in (None, now):
            return
        log.warning("no runner has the prompt that the task began under", task=str(self._task.id), was=was)
        async with self._sessions.begin() as session:
            await lease.hold(session, self._task.id, self._owner)
            await results.append(session, self._task.id, "prompt", {"was": was, "now": now})

    async def on_silence(self, failure: str) -> None:
        """Report, as an event, why the hosted model is asked again: the same reason once until it answers, in
        whichever attempt.
        """
        remark: dict[str, Json] = {"text": self.secrets.mask(f"waiting for the hosted model: {failure}")}
        with suppress(ConflictError, *TRANSIENT):  # the next write meets that, too
            async with self._sessions.begin() as session:
                await lease.hold(session, self._task.id, self._owner)
                told = await results.of_kind(session, self._task.id, "remark")
                if len(told) < _MOST_REMARKS and (self._has_answered or remark not in told[-1:]):
                    await results.append(session, self._task.id, "remark", remark)
            self._has_answered = False

    async def _tried(self, model: str) -> dict[str, trials.TrialScore]:
        """By this model of releases."""
        async with self._sessions() as session:
            found = await trials.scores(session, self._task.project_id)
        return {each.name: each.score for each in found.values() if each.made is None or each.made.model == model}

    @timed(Phase.JOURNAL)
    async def explore(self, how: Exploration) -> None:
        """Record that the task explores, if it has not begun otherwise."""
        async with self._sessions.begin() as session:
            begun = await turns.explore(session, self._task.id, self._owner, how)
        if begun:
            self._task.exploration = how

    @timed(Phase.JOURNAL)
    async def begin_again(self, ended: ExplorationEndedError) -> None:
        """Forget the attempt of a task that explored, and say so by an event."""
        self._take_unwritten()
        self._outgoing = None
        self._lost.clear()
        text = (
            f"it explored, at temperature 1, until it was about to call {ended.api}, which is not open to that, "
            "and begins again without"
        )
        async with self._sessions.begin() as session:
            event = results.NewEvent("remark", {"text": text})
            await turns.begin_again(session, self._task.id, self._owner, event)
        self._task.exploration = Exploration.STOPPED

    @timed(Phase.JOURNAL)
    async def on_sampled(self, index: int, turn: Turn) -> None:
        self._has_answered = True
        data = {"turn": index, "text": turn.full_text, "tokens": turn.generated_tokens}
        data["context_tokens"] = turn.counted.prompt if turn.counted else len(turn.context_ids)
        about = self._task.id, self._owner, index, turn
        new = [results.NewEvent("turn", self.secrets.mask_fields(data))]
        if self._task.lone_deaths:
            async with self._sessions.begin() as session:
                await turns.begin(session, *about, new)
                await queue.advance(session, self._task.id, self._owner)
        else:
            async with direct(self._sessions) as handle:
                await turns.begin(handle, *about, new)
        if turn.counted is not None:
            self.used += Tokens(prompt=turn.counted.prompt, generated=turn.counted.generated)

    @timed(Phase.JOURNAL)
    async def on_turn_end(self, index: int, turn: Turn) -> None:
        if self._outgoing is not None:  # the code's time was over before its answer came
            self._unwritten += [call for call in turn.calls if call.seq == self._outgoing.call.seq]
            self._outgoing = None
        made, new = self._take_unwritten()
        if self._in_doubt:
            new += [self._call_event(call) for call in turn.calls[-1:]]
        new += self._events_of(index, turn)
        async with direct(self._sessions) as handle:
            if self._in_doubt:  # the turn is run again once somebody has settled what became of the call
                await calls.record(handle, self._task.id, self._owner, made, new)
            else:
                await turns.end(handle, self._task.id, self._owner, index, turn, made, new)
        self._written = time.monotonic()
        await self.report_refusals()

    @timed(Phase.JOURNAL)
    async def report_refusals(self) -> None:
        """Take skills that attempted calls beyond their manifests from all tasks, and report them as events."""
        by_skill = defaultdict(list)
        for refused in self.guard.take_refusals():
            by_skill[refused.skill].append(refused)
        for offer in self.offered:
            if refusals := by_skill.get(offer.name):
                async with self._sessions.begin() as session:
                    reason = f"it attempted a call beyond its manifest: {refusals[0].reason}"
                    await moves.quarantine(session, offer.skill_id, reason, len(refusals))
                    data = [{"api": each.api, "reason": each.reason} for each in refusals]
                    refused_events = [
                        results.NewEvent("skill", offers.skill_event("refused", offer) | each) for each in data
                    ]
                    await results.append_all(session, self._task.id, refused_events)

    async def on_approval_wanted(self, request: ApprovalRequest) -> None:
        """Commit the request together with the task's suspension, unless the task is to be cancelled."""
        shown = await asyncio.to_thread(shown_call, request.arguments, self.secrets)
        masked = self.secrets.mask_fields(mask(request.arguments))
        request = msgspec.structs.replace(request, arguments=masked)
        self.stop_signal.released = True  # from the commit on, the task may be claimed again
        made, new = self._take_unwritten()
        async with self._sessions.begin() as session:
            if made:
                await calls.record(session, self._task.id, self._owner, made, new)
            stored = await approvals.request(session, self._task, self._owner, request, shown)
            await masking.mask(session, self._task.id, self.secrets)  # no journal has the call
        if stored is not None:
            raise SuspendedError(f"{request.api} waits for a person's approval")
        self.stop_signal.released = False

    @timed(Phase.JOURNAL)
    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        """Raises InDoubtError for a call that may have gone out already."""
        lost = self._lost.pop(call.seq, None)
        if lost is not None and not (lost.repeatable and repeatable and _same(lost, call)):
            async with reading(self._sessions) as session:  # the runner that lost it may have undone it
                made = await calls.of_task(session, self._task.id)
            if any(each.seq == call.seq for each in made):
                self._in_doubt = True
                raise InDoubtError(lost.api, lost.arguments, _DIED if self._task.deaths else _CUT_OFF)
        self._outgoing = None if repeatable else _Outgoing(call)
        return None

    @timed(Phase.JOURNAL)
    async def sending(self) -> None:
        """Commit the call. Raises ConflictError if the task was claimed again, also if that was during a stall
        since the commit.
        """
        outgoing = self._outgoing
        assert outgoing is not None, "a call that may not be repeated has begun"
        if not outgoing.sealed:
            await self._commit(outgoing)
        await self._hold()
        if self._marks is not None:
            self._marks.sent(self._task.id)
            await self._hold()  # whoever took the task over during a stall before the mark relies on its absence
            if self.stop_signal.released or self.stop_signal.lost:
                raise lease.lost("task", self._task.id, self._owner)
        outgoing.sent = True

    async def _commit(self, outgoing: "_Outgoing") -> None:
        confirmed, (made, new) = boot_time(), self._take_unwritten()
        about, seconds = (self._task.id, self._owner, outgoing.call), _SENDING_SECONDS
        async with direct(self._sessions) as handle:
            outgoing.sealed = calls.seal(handle, outgoing.call)
            sealed = outgoing.sealed
            if self._marks is not None:
                self._marks.begin(self._task.id, outgoing.call.seq, sealed)
            await calls.begin(handle, *about, repeatable=False, sealed=sealed, seconds=seconds, made=made, new=new)
        self._confirmed, self._written = confirmed, time.monotonic()

    async def _hold(self) -> None:
        while boot_time() - self._confirmed > _SENDING_SECONDS / 2:
            confirmed = boot_time()
            async with self._sessions.begin() as session:
                await lease.hold_for(session, self._task.id, self._owner, _SENDING_SECONDS)
            self._confirmed = confirmed

    @timed(Phase.JOURNAL)
    async def end(self, call: Call) -> None:
        """Calls that are repeatable, or were not sent, are written in batches, at the latest before the next one
        goes out that is not repeatable.
        """
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is None or not call.sent:
            assert outgoing is None or not outgoing.sent, "a call that was not sent had begun to be"
            await self._undo(outgoing)
            self._unwritten.append(call)
            if time.monotonic() - self._written > _BATCH_SECONDS:
                await self.flush()
            return
        assert outgoing.sent, "a call went out that no row told of"
        await _despite_cancellation(partial(self._end, call))  # without its result, it would be in doubt

    async def abort(self) -> None:
        await self._undo(self._outgoing)

    async def _undo(self, outgoing: "_Outgoing | None") -> None:
        """Nobody else can tell that the call was not sent."""
        if outgoing is not None and outgoing.sealed and not outgoing.sent:
            await _despite_cancellation(partial(self._undo_begin, outgoing))
            outgoing.sealed = b""

    async def _undo_begin(self, outgoing: "_Outgoing") -> None:
        async with direct(self._sessions) as handle:
            await calls.undo(handle, self._task.id, outgoing.call.seq, outgoing.sealed)

    async def _end(self, call: Call) -> None:
        async with direct(self._sessions) as handle:
            await calls.end(handle, self._task.id, call, [self._call_event(call)])

    @timed(Phase.JOURNAL)
    async def flush(self) -> None:
        """Write what is pending: a rollout may end in the middle of a turn."""
        made, new = self._take_unwritten()
        if made:
            async with direct(self._sessions) as handle:
                await calls.record(handle, self._task.id, self._owner, made, new)
            self._written = time.monotonic()

    def _take_unwritten(self) -> tuple[list[Call], list[results.NewEvent]]:
        """The pending calls, and their events."""
        made, self._unwritten = self._unwritten, []
        return made, list(map(self._call_event, made))

    def _events_of(self, index: int, turn: Turn) -> Iterator[results.NewEvent]:
        if turn.outcome:
            data = {"turn": index, "text": turn.observation, "outcome": turn.outcome}
            yield results.NewEvent("observation", self.secrets.mask_fields(data))
        for use in turn.uses:
            offer = next((each for each in self.offered if each.name == use.function), None)
            if offer is not None and use.inherited:
                counts = {"calls": use.calls, "returned": use.returned, "turn": index}
                yield results.NewEvent("skill", offers.skill_event("used", offer) | counts)

    def _call_event(self, call: Call) -> results.NewEvent:
        return results.NewEvent("call", call_fields(call, self.secrets))


@dataclass
class _Outgoing:
    """A call that must not be repeated, until it returns. `sealed`: its row may be in the journal."""

    call: Call
    sealed: bytes = b""
    sent: bool = False


async def _despite_cancellation(write: Callable[[], Awaitable[None]]) -> None:
    """As `retry_while_unavailable`; a rollout that is cancelled meanwhile ends after the write."""
    writing = asyncio.ensure_future(retry_while_unavailable(write))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.warning("a call stays in doubt: the journal cannot be written", cause=first_line(error))
        raise


def _same(lost: calls.JournalCall, call: Call) -> bool:
    return lost.api == call.api and lost.arguments == msgspec.to_builtins(call.arguments)
