"""Runs one rollout: an agent works on a task through a gateway and leaves a trajectory. No SQL, no torch.

With its limits, what calls back while it runs, how it is stopped from outside, and its Python session.
"""

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final, Self

import msgspec

from app.agent.action import ends_in_thought, extract_code
from app.agent.chat import Conversation, MessageConversation, TokenConversation
from app.agent.prompts import HOSTED, Profile, prompt_hash
from app.apis.approvals.gate import ApprovalRequest, ApprovalWantedError
from app.apis.calls.gateway import Gateway
from app.apis.listing import listed_apps
from app.base.errors import SandboxError
from app.base.settings import Settings
from app.base.telemetry import Phase, phase, span
from app.base.values import Call, Offer, Policy, Stop, Task, Trajectory, Turn
from app.engine.protocol import ChatModel, Engine
from app.engine.tokenizer import ChatTokenizer, Message
from app.sandbox.protocol import Function, Observation, RunStop, Sandbox, Session, SessionLimits

TURN_TOKENS: Final = 512
THINKING_TURN_TOKENS: Final = 4096  # with fewer, many a thought would end before its code
_SETUP_CPU_SECONDS = 60  # of a session: to define the offered skills
_IN_TURN = re.compile(r"<turn \d+>")  # in a traceback, as the name of a file


class RolloutLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Each limit has its own `Stop`."""

    turns: int = 12
    turn_tokens: int = TURN_TOKENS  # generated in one turn
    thinking_turn_tokens: int | None = None  # in one of a hosted model that thinks; None: as many
    task_tokens: int = 8192  # generated in all turns
    calls: int = 200  # to live APIs; the gateway refuses further ones
    errors: int = 8  # turns whose code raised or was stopped
    repeats: int = 3  # such turns with the same code and observation; two in a row where no API refused a call;
    # and turns in a row that are the same word for word, with the same observation, even if nothing failed
    seconds: float = 300.0
    counts_generation: bool = True  # whether `seconds` run while the engine generates, or waits for its turn to
    session: SessionLimits = SessionLimits()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits that a deployment sets for each task."""
        return cls(
            turns=settings.max_turns,
            turn_tokens=settings.max_turn_tokens or TURN_TOKENS,
            thinking_turn_tokens=settings.max_turn_tokens or THINKING_TURN_TOKENS,
            task_tokens=settings.max_task_tokens,
            calls=settings.max_task_calls,
            seconds=settings.max_task_seconds,
            session=SessionLimits(
                cpu_seconds=settings.sandbox_cpu_seconds,
                session_cpu_seconds=2 * settings.sandbox_cpu_seconds * settings.max_turns + _SETUP_CPU_SECONDS,
                memory_bytes=settings.sandbox_memory_mb << 20,
                calls=2 * settings.max_task_calls + 100,  # look-ups count here too
            ),
        )

    def tokens_left(self, turns: Sequence[Turn]) -> int:
        return self.task_tokens - sum(turn.generated_tokens for turn in turns)

    def reached(self, turns: Sequence[Turn]) -> Stop | None:
        """The limit that ends the rollout after these turns; None if it continues."""
        if not turns:
            return None
        limits = (
            (self.tokens_left(turns) <= 0, Stop.TOKEN_LIMIT),  # first, since it may also have truncated the code
            (turns[-1].finish == "length" and ends_in_thought(turns[-1].full_text), Stop.TOKEN_LIMIT),
            (extract_code(turns[-1].full_text) is None, Stop.NO_CODE),
            (turns[-1].outcome == RunStop.CALLS, Stop.CALL_LIMIT),
            (self._is_stuck(turns), Stop.STUCK),
            (sum(turn.failed for turn in turns) >= self.errors, Stop.ERROR_LIMIT),
            (len(turns) >= self.turns, Stop.TURN_LIMIT),
            (self._goes_round(turns), Stop.STUCK),
        )
        return next((stop for is_reached, stop in limits if is_reached), None)

    def _is_stuck(self, turns: Sequence[Turn]) -> bool:
        """An agent that repeats an error seldom stops by itself, even if it looks something up in between.

        What an API refused may be worth another try.
        """
        last = turns[-1]
        if not last.failed:
            return False
        failures = [(extract_code(turn.full_text), _same(turn.observation)) for turn in turns if turn.failed]
        in_a_row = len(turns) > 1 and turns[-2].failed and failures[-2] == failures[-1]
        refused = any(call.error is not None for call in last.calls)
        return failures.count(failures[-1]) >= self.repeats or (in_a_row and not refused)

    def _goes_round(self, turns: Sequence[Turn]) -> bool:
        """An agent that writes the same, and sees the same, again and again does not stop by itself either."""
        last = [(turn.full_text, _same(turn.observation)) for turn in turns[-self.repeats :]]
        return len(last) == self.repeats and len(set(last)) == 1


def _same(observation: str) -> str:
    """Whatever the number of its turn."""
    return _IN_TURN.sub("", observation)


class SuspendedError(Exception):
    """The rollout was stopped where it can be resumed: between two turns, or at a call that needs approval.

    It has no trajectory yet.
    """


class StopSignal:
    """Cancelling stops at once and for good, suspending at the next point where nothing is lost."""

    def __init__(self, *, cancelled: bool = False) -> None:
        self.cancelled = cancelled
        self.suspended = False
        self.released = False  # the rollout has written the task's end or handed it back, and writes no more
        self.lost = False  # another runner claimed the task, whose lease had expired
        self._lossless = False
        self._timeout: asyncio.Timeout | None = None

    def cancel(self) -> None:
        self.cancelled = True
        self._expire()

    def suspend(self) -> None:
        self.suspended = True
        if self._lossless:
            self._expire()

    def attach(self, timeout: asyncio.Timeout) -> None:
        """Set the timeout that the rollout runs under."""
        self._timeout = timeout
        if self.cancelled:
            self._expire()

    @contextmanager
    def lossless(self) -> Iterator[None]:
        """Work in this block can be repeated: a suspended rollout stops here. Raises SuspendedError."""
        self._raise_if_suspended()
        self._lossless = True
        try:
            yield
        finally:
            self._lossless = False
        self._raise_if_suspended()

    def _raise_if_suspended(self) -> None:
        if self.suspended:
            raise SuspendedError

    def _expire(self) -> None:
        if self._timeout is not None and not self._timeout.expired():
            with suppress(RuntimeError):  # the rollout has ended
                self._timeout.reschedule(asyncio.get_running_loop().time())


class RolloutHooks:
    """Override the callbacks you need. The rollout awaits them; their exceptions propagate."""

    def __init__(self, stop_signal: StopSignal | None = None) -> None:
        self.stop_signal = stop_signal or StopSignal()

    async def on_sampled(self, index: int, turn: Turn) -> None:
        """The policy answered; its code has not run yet, so `turn` has no observation."""

    async def on_turn_end(self, index: int, turn: Turn) -> None:
        """The code ran, or there was none. `turn` is complete."""

    async def on_approval_wanted(self, request: ApprovalRequest) -> None:
        """A call waits for a person, and the session has ended. The code is run again once somebody decided.

        Raises SuspendedError; returns if the rollout is to end as cancelled instead.
        """
        raise SuspendedError(request.api)


_MIN_TOKENS = 16  # a turn with less room cannot hold a block of code
_IN_THOUGHT = "the last turn ended in a thought, before any code"


@dataclass(frozen=True)
class Agent:
    """The parts shared by all rollouts."""

    engine: Engine
    tokenizer: ChatTokenizer
    profile: Profile
    sandbox: Sandbox
    limits: RolloutLimits
    temperature: float = 0.0
    served_length: Callable[[], int | None] = lambda: None  # tokens of a sequence at most, as far as servers told
    hosted: ChatModel | None = None  # the policy, instead of one on the engine: see `hosted_agent`

    @property
    def max_length(self) -> int:
        """Tokens of a sequence, prompt included: of the model, or of the servers if they take fewer."""
        served = self.served_length()
        return self.tokenizer.max_length if served is None else min(self.tokenizer.max_length, served)

    @property
    def turn_tokens(self) -> int:
        """Generated in one turn at most, as far as it is known that a hosted model thinks."""
        thinking = self.limits.thinking_turn_tokens
        thinks = self.hosted is not None and self.hosted.thinks
        return thinking if thinks and thinking is not None else self.limits.turn_tokens

    @cached_property
    def prompt_hash(self) -> str:
        return prompt_hash(self.profile, None if self.hosted else self.tokenizer)

    def conversation(self, model: str, opening: Sequence[Message]) -> Conversation:
        """A new one with the policy of this name."""
        if self.hosted is not None:
            return MessageConversation(self.hosted, model, opening, self.profile.stop_strings)
        strings = self.profile.stop_strings
        longest = lambda: self.max_length  # noqa: E731
        return TokenConversation(self.engine, model, self.tokenizer, opening, strings, longest)


def hosted_agent(agent: Agent, model: ChatModel) -> Agent:
    """The agent whose policy is a hosted model, whatever the model servers have."""
    return replace(agent, hosted=model, profile=HOSTED)


class ResumeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state a rollout starts from: its seed, its clock, and the turns recorded by an earlier process."""

    seed: int = 0
    now: datetime | None = None  # None: the real clock
    recorded: tuple[Turn, ...] = ()  # turns whose code has run
    begun: Turn | None = None  # the next turn, if sampled already; its code may have run in part
    known: tuple[Call, ...] = ()  # the calls that the code of `begun` is known to have made


End = tuple[Stop, str]
"""The reason why a rollout ended, and details."""


async def run_rollout(
    agent: Agent,
    task: Task,
    policy: Policy,
    gateway: Gateway,
    offers: Sequence[Offer] = (),
    resume: ResumeState | None = None,
    hooks: RolloutHooks | None = None,
) -> Trajectory:
    """Let the policy work on a task until it reports completion or reaches a limit.

    Serving, training and the gate all use this function, with other arguments. Failures of the agent's code are
    part of the trajectory. Raises EngineError or SandboxError if a part is broken, SuspendedError if the rollout
    was suspended.
    """
    started = time.monotonic()
    with phase(Phase.PROMPT):
        rollout = _Rollout(agent, task, policy, gateway, offers, resume or ResumeState(), hooks or RolloutHooks())
    stop, detail = await rollout.run()
    return Trajectory(
        task=task,
        policy=policy,
        profile=agent.profile.name,
        turns=tuple(rollout.turns),
        stop=stop,
        answer=gateway.answer,
        detail=detail,
        offered=tuple(offers),
        seconds=time.monotonic() - started,
        temperature=agent.temperature,
    )


class _Rollout:
    def __init__(
        self,
        agent: Agent,
        task: Task,
        policy: Policy,
        gateway: Gateway,
        offers: Sequence[Offer],
        resume: ResumeState,
        hooks: RolloutHooks,
    ) -> None:
        self.turns: list[Turn] = []
        self._agent, self._gateway, self._hooks = agent, gateway, hooks
        gateway.look_ups.chars = agent.profile.look_up_chars
        self._origin = resume
        self._unfinished: Turn | None = None
        self._prompt_hash = agent.prompt_hash  # before the opening: a profile may remember what it rendered last
        opening = agent.profile.opening(task, offers, listed_apps(gateway.catalog))
        self._conversation = agent.conversation(policy.model, opening)
        limits = msgspec.structs.replace(agent.limits.session, project=task.project)
        self._repl = Repl(agent.sandbox, gateway, limits, offers, resume)

    async def run(self) -> End:
        stop_signal = self._hooks.stop_signal
        try:
            async with asyncio.timeout(self._agent.limits.seconds) as self._clock:
                stop_signal.attach(self._clock)
                await self._resume()
                return await self._continue()
        except DivergedError as error:
            return Stop.IN_DOUBT, str(error)
        except ApprovalWantedError as wanted:
            await self._repl.close()
            await self._hooks.on_approval_wanted(wanted.request)
            self._keep_unfinished(Stop.CANCELLED.value)
            return Stop.CANCELLED, ""
        except TimeoutError:
            if not self._clock.expired():
                raise
            if stop_signal.suspended and not stop_signal.cancelled:
                raise SuspendedError from None
            stop = Stop.CANCELLED if stop_signal.cancelled else Stop.WALL_LIMIT
            self._keep_unfinished(stop.value)
            return stop, ""
        finally:
            await self._repl.close()

    async def _resume(self) -> None:
        """Restore the state that an earlier process left."""
        self._gateway.resume([call for turn in self._origin.recorded for call in turn.calls])
        for index, turn in enumerate(self._origin.recorded):
            self._add(turn)
            code = extract_code(turn.full_text)
            if code is not None and turn.alive:
                self._repl.remember(index, code, turn.calls)
        if self._origin.recorded:
            with phase(Phase.SANDBOX):
                await self._repl.open_session()
        if self._origin.begun is not None:
            await self._execute(self._origin.begun, self._origin.known)

    async def _continue(self) -> End:
        while (end := self._end()) is None:
            with phase(Phase.PROMPT):
                taken = self._conversation.prompt()
            longest = self._conversation.max_length
            room = None if longest is None else longest - taken
            if room is not None and room < _MIN_TOKENS:
                return Stop.CONTEXT_FULL, f"{taken} of {longest} tokens are taken"
            with span("turn", {"sage.turn.index": len(self.turns)}):
                with self._hooks.stop_signal.lossless():
                    turn = await self._sample(room)
                await self._hooks.on_sampled(len(self.turns), turn)
                await self._execute(turn)
        return end

    async def _sample(self, room: int | None) -> Turn:
        most = min(self._agent.turn_tokens, self._agent.limits.tokens_left(self.turns))
        started = time.monotonic()
        with phase(Phase.ENGINE), self._during_generation():
            turn = await self._conversation.sample(
                max_tokens=most if room is None else min(room, most),
                temperature=self._agent.temperature,
                seed=zlib.crc32(f"{self._origin.seed} {len(self.turns)}".encode()),
            )
        return msgspec.structs.replace(turn, prompt=self._prompt_hash, engine_seconds=time.monotonic() - started)

    @contextmanager
    def _during_generation(self) -> Iterator[None]:
        """Stop the clock, unless the limits count generation, or the rollout is being stopped from outside."""
        clock, due = self._clock, self._clock.when()
        if self._agent.limits.counts_generation or due is None or clock.expired():
            yield
            return
        loop = asyncio.get_running_loop()
        left = due - loop.time()
        clock.reschedule(None)
        yield
        if clock.when() is None:
            clock.reschedule(loop.time() + left)

    async def _execute(self, turn: Turn, known: Sequence[Call] = ()) -> None:
        """Run the turn's code, if any, and append the turn with its observation."""
        index = len(self.turns)
        code = extract_code(turn.full_text)
        if code is not None:
            self._unfinished = turn
            started = time.monotonic()
            with phase(Phase.SANDBOX):
                observation, calls = await self._repl.run(index, code, known=known)
            self._unfinished = None
            turn = msgspec.structs.replace(
                turn,
                observation=self._agent.profile.observation(observation),
                outcome=observation.stop.value,
                alive=observation.alive,
                calls=calls,
                uses=observation.uses,
                skill_calls=observation.skill_calls,
                sandbox_seconds=time.monotonic() - started,
            )
        self._add(turn)
        await self._hooks.on_turn_end(index, turn)

    def _end(self) -> End | None:
        """The reason if the last turn ended the rollout; None if it continues."""
        if self._gateway.in_doubt is not None:
            return Stop.IN_DOUBT, self._gateway.in_doubt
        if self._gateway.completed:
            return Stop.COMPLETED, ""
        if self._gateway.call_limit_hit:
            return Stop.CALL_LIMIT, ""
        reached = self._agent.limits.reached(self.turns)
        if reached is None:
            return None
        return reached, _IN_THOUGHT if ends_in_thought(self.turns[-1].full_text) else ""

    def _add(self, turn: Turn) -> None:
        self.turns.append(turn)
        with phase(Phase.PROMPT):
            self._conversation.add(turn)

    def _keep_unfinished(self, outcome: str) -> None:
        """Append the turn whose code was running, with the calls it had made."""
        if self._unfinished is not None:
            calls = self._gateway.take_calls()
            self.turns.append(msgspec.structs.replace(self._unfinished, outcome=outcome, alive=False, calls=calls))


class DivergedError(Exception):
    """Replayed code made other calls than the first time, so the session cannot be rebuilt."""


class _Ran(msgspec.Struct, frozen=True):
    turn: int
    code: str
    calls: tuple[Call, ...]


class Repl:
    """The Python session of one rollout. If it dies, it is rebuilt before the next turn.

    Keeps the code of the turns that left the session alive, and the results of their calls. A new session replays
    them, and the gateway answers with those results: no call is sent twice. Equal starts and equal results give
    equal state.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        gateway: Gateway,
        limits: SessionLimits,
        offers: Sequence[Offer],
        origin: ResumeState,
    ) -> None:
        self._sandbox, self._gateway, self._limits, self._origin = sandbox, gateway, limits, origin
        self._prelude = [Function(offer.name, offer.source) for offer in offers]
        self._session: Session | None = None
        self._runs: list[_Ran] = []

    def remember(self, turn: int, code: str, calls: Sequence[Call]) -> None:
        """Add a turn of an earlier process, to be replayed with these results before the next one."""
        self._runs.append(_Ran(turn, code, tuple(calls)))

    async def run(
        self, turn: int, code: str, *, known: Sequence[Call] = ()
    ) -> tuple[Observation, tuple[Call, ...]]:
        """The observation and the calls made. `known` are the calls that an earlier attempt already made.

        Raises DivergedError if the session cannot be rebuilt, SandboxError if the sandbox is broken.
        """
        session = await self.open_session()
        self._gateway.turn = turn
        self._gateway.replay(known)
        observation = await session.run(code)
        entered = tuple(msgspec.structs.replace(each, turn=turn) for each in observation.skill_calls)
        observation = msgspec.structs.replace(observation, skill_calls=entered)
        calls = self._gateway.take_calls()
        if observation.alive:
            self._runs.append(_Ran(turn, code, calls))
        else:
            await self.close()
        return observation, calls

    async def open_session(self) -> Session:
        """The session, with everything run so far. Raises DivergedError, SandboxError."""
        if self._session is not None:
            return self._session
        self._session = await self._sandbox.open(
            self._gateway.names(),
            self._gateway.answer_call,
            self._limits,
            prelude=self._prelude,
            seed=self._origin.seed,
            now=self._origin.now,
        )
        for earlier in self._runs:
            await self._replay(self._session, earlier)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _replay(self, session: Session, earlier: _Ran) -> None:
        self._gateway.turn = earlier.turn
        self._gateway.replay(earlier.calls, closed=True)
        observation = await session.run(earlier.code)
        calls = self._gateway.take_calls()
        if not observation.alive and self._gateway.in_doubt is None:  # killed, which says nothing about its calls
            cause = f"the session ended ({observation.stop})"
            raise SandboxError(f"{cause} while turn {earlier.turn + 1} was run again")
        if self._gateway.in_doubt is not None or len(calls) != len(earlier.calls):
            why = self._gateway.in_doubt or "run again, it did not make the same calls"
            raise DivergedError(f"turn {earlier.turn + 1} cannot be repeated: {why}")
