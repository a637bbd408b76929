"""The Python session of one rollout. If it dies, it is rebuilt before the next turn."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from app.apis.calls.gateway import Gateway
from app.base.errors import SandboxError
from app.base.values import Call, Offer
from app.sandbox.protocol import Function, Observation, Sandbox, Session, SessionLimits


class DivergedError(Exception):
    """Replayed code made other calls than the first time, so the session cannot be rebuilt."""


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """The initial state of every session of the rollout. Equal starts and equal results give equal state."""

    limits: SessionLimits
    offers: tuple[Offer, ...] = ()
    seed: int = 0
    now: datetime | None = None


class _Run(msgspec.Struct, frozen=True):
    turn: int
    code: str
    calls: tuple[Call, ...]


class Repl:
    """Keeps the code of the turns that left the session alive, and the results of their calls.

    A new session replays them, and the gateway answers with those results: no call is sent twice.
    """

    def __init__(self, sandbox: Sandbox, gateway: Gateway, start: SessionStart) -> None:
        self._sandbox = sandbox
        self._gateway = gateway
        self._start = start
        self._session: Session | None = None
        self._runs: list[_Run] = []

    def remember(self, turn: int, code: str, calls: Sequence[Call]) -> None:
        """Add a turn of an earlier process, to be replayed with these results before the next one."""
        self._runs.append(_Run(turn, code, tuple(calls)))

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
            self._runs.append(_Run(turn, code, calls))
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
            self._start.limits,
            prelude=[Function(offer.name, offer.source) for offer in self._start.offers],
            seed=self._start.seed,
            now=self._start.now,
        )
        for earlier in self._runs:
            await self._replay(self._session, earlier)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _replay(self, session: Session, earlier: _Run) -> None:
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
