"""The line at the door of the model servers: who comes first is asked for first, and no server gets too much."""

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Sequence
from http import HTTPStatus

import msgspec

from app.engine.replica import Replica, State
from app.engine.routing import Load, choose
from app.errors import EngineError, EngineRefusalError


class Occupancy(msgspec.Struct, frozen=True):
    """How busy the model servers are at a moment."""

    servers: dict[State, int]
    in_flight: int = 0  # generations asked for
    waiting: int = 0  # ones that no server has room for


class Wish:
    """One request that is to be answered by one of the servers it has not tried."""

    def __init__(self, model: str, blocks: Sequence[int], tried: Collection[Replica]) -> None:
        self.model, self.blocks, self.tried = model, blocks, tried
        self.granted: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()


class Line:
    """Call `look` whenever a server came, went, or has other adapters."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._wishes: deque[Wish] = deque()

    @property
    def occupancy(self) -> Occupancy:
        states = Counter(one.state for one in self._replicas)
        return Occupancy(
            {state: states[state] for state in State},
            sum(one.in_flight for one in self._replicas),
            sum(not wish.granted.done() for wish in self._wishes),
        )

    async def enter(self, model: str, blocks: Sequence[int], tried: Collection[Replica]) -> Replica:
        """A server with room, which is then taken: give it back with `leave`.

        Raises EngineRefusalError (404) where none has the model, EngineError where none answers or all were tried.
        """
        wish = Wish(model, blocks, tried)
        self._wishes.append(wish)
        self.look()
        try:
            return await wish.granted
        except asyncio.CancelledError:
            if wish.granted.done() and not wish.granted.cancelled() and wish.granted.exception() is None:
                self.leave(wish.granted.result())
            raise

    def leave(self, replica: Replica) -> None:
        replica.in_flight -= 1
        self.look()

    def look(self) -> None:
        """Grants what can be granted, in the order of coming; a wish for a rare model holds up nobody else."""
        kept = deque[Wish]()
        while self._wishes:
            wish = self._wishes.popleft()
            if not wish.granted.done() and not self._decide(wish):
                kept.append(wish)
        self._wishes = kept

    def _decide(self, wish: Wish) -> bool:
        """False: it has to wait."""
        fit = [one for one in self._replicas if one.alive and wish.model in one.names and one not in wish.tried]
        roomy = [one for one in fit if one.in_flight < one.at_once]
        if roomy:
            loads = [Load(one.in_flight, one.seen.prefix(wish.blocks)) for one in roomy]
            replica = roomy[choose(loads)]
            replica.in_flight += 1
            replica.seen.add(wish.blocks)
            wish.granted.set_result(replica)
        elif not fit and (error := self._hopeless(wish)):
            wish.granted.set_exception(error)
        return wish.granted.done()

    def _hopeless(self, wish: Wish) -> EngineError | None:
        """Why nobody will answer soon; None where a server is about to be ready."""
        if any(one.alive for one in self._replicas):
            if wish.tried:
                return EngineError("no other model server is there to ask.")
            return EngineRefusalError(f"no model server has `{wish.model}`: load it.", HTTPStatus.NOT_FOUND)
        if any(one.state in {State.NEW, State.RETURNING} for one in self._replicas):
            return None
        return all_out(self._replicas)


def all_out(replicas: Sequence[Replica]) -> EngineError:
    causes = "; ".join(f"{one.url}: {one.cause}" for one in replicas)
    return EngineError(f"no model server answers. {causes}")
