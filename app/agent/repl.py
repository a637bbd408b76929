"""The Python session of one rollout. When it dies, the next turn finds it rebuilt."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from app.gateway.gateway import Gateway
from app.records import Call, Offer
from app.sandbox.protocol import Function, Observation, Sandbox, Session, SessionLimits


class DivergedError(Exception):
    """Replayed code did not make the calls that it made the first time, so the session cannot be rebuilt."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What every session of the rollout begins with. The same start and the same results give the same state."""

    limits: SessionLimits
    offers: tuple[Offer, ...] = ()
    seed: int = 0
    now: datetime | None = None


class _Past(msgspec.Struct, frozen=True):
    turn: int
    code: str
    calls: tuple[Call, ...]


class Repl:
    """Keeps the code of the turns that ended well with the session, and the results of their calls.

    A new session runs them again, and the gateway answers from those results: no call goes out twice.
    """

    def __init__(self, sandbox: Sandbox, gateway: Gateway, start: Start) -> None:
        self._sandbox = sandbox
        self._gateway = gateway
        self._start = start
        self._session: Session | None = None
        self._past: list[_Past] = []

    def remember(self, turn: int, code: str, calls: Sequence[Call]) -> None:
        """A turn of an earlier process. It is run again before the next one, with these results."""
        self._past.append(_Past(turn, code, tuple(calls)))

    async def run(
        self, turn: int, code: str, *, known: Sequence[Call] = ()
    ) -> tuple[Observation, tuple[Call, ...]]:
        """The observation, and the calls that were made. `known` are those that an earlier try already made.

        Raises DivergedError where the session cannot be rebuilt, SandboxError where the sandbox is broken.
        """
        session = await self.rebuilt()
        self._gateway.turn = turn
        self._gateway.recall(known)
        observation = await session.run(code)
        calls = self._gateway.take_calls()
        if observation.alive:
            self._past.append(_Past(turn, code, calls))
        else:
            await self.close()
        return observation, calls

    async def rebuilt(self) -> Session:
        """The session with all that was run so far. Raises DivergedError, SandboxError."""
        if self._session is not None:
            return self._session
        self._session = await self._sandbox.open(
            self._gateway.names(),
            self._gateway,
            self._start.limits,
            prelude=[Function(offer.name, offer.source) for offer in self._start.offers],
            seed=self._start.seed,
            now=self._start.now,
        )
        for past in self._past:
            await self._again(self._session, past)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _again(self, session: Session, past: _Past) -> None:
        self._gateway.turn = past.turn
        self._gateway.recall(past.calls)
        observation = await session.run(past.code)
        again = self._gateway.take_calls()
        if self._gateway.in_doubt is not None or len(again) != len(past.calls) or not observation.alive:
            why = self._gateway.in_doubt or "run again, it did not make the same calls"
            raise DivergedError(f"turn {past.turn + 1} cannot be repeated: {why}")
