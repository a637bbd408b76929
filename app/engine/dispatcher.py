"""Assigns requests to model servers: first come, first served, with a limit of requests per server."""

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Sequence
from http import HTTPStatus

import msgspec

from app.engine.discovery import Servers
from app.engine.replica import Replica, ReplicaState
from app.engine.routing import ReplicaLoad, choose_replica
from app.errors import EngineError, EngineRefusalError


class Occupancy(msgspec.Struct, frozen=True):
    """The load of the model servers at a moment."""

    servers: dict[ReplicaState, int]
    in_flight: int = 0  # generations sent to a server
    waiting: int = 0  # generations that wait for a server


class PendingRequest:
    """A request that waits for one of the servers it has not tried."""

    def __init__(self, model: str, blocks: Sequence[int], tried: Collection[Replica]) -> None:
        self.model, self.blocks, self.tried = model, blocks, tried
        self.assigned: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()


class Dispatcher:
    """Call `dispatch` whenever a server joins or leaves, or its adapters change."""

    def __init__(self, servers: Servers, *, everywhere: bool = False) -> None:
        """`everywhere`: any live server may get a request, so all must have its model."""
        self._servers, self._everywhere = servers, everywhere
        self._pending: deque[PendingRequest] = deque()

    @property
    def occupancy(self) -> Occupancy:
        replicas = self._servers.replicas
        states = Counter(one.state for one in replicas)
        return Occupancy(
            {state: states[state] for state in ReplicaState},
            sum(one.in_flight for one in replicas),
            sum(not request.assigned.done() for request in self._pending),
        )

    async def acquire(self, model: str, blocks: Sequence[int], tried: Collection[Replica]) -> Replica:
        """A server with capacity, which is then occupied: give it back with `release`.

        Raises EngineRefusalError (404) if no live server has the model, EngineError if there is none left to try.
        """
        request = PendingRequest(model, blocks, tried)
        self._pending.append(request)
        self.dispatch()
        try:
            return await request.assigned
        except asyncio.CancelledError:
            if (
                request.assigned.done()
                and not request.assigned.cancelled()
                and request.assigned.exception() is None
            ):
                self.release(request.assigned.result())
            raise

    def release(self, replica: Replica) -> None:
        replica.in_flight -= 1
        self.dispatch()

    def dispatch(self) -> None:
        """Assign what can be assigned, in order of arrival; a request for a rare model blocks no other."""
        kept = deque[PendingRequest]()
        while self._pending:
            request = self._pending.popleft()
            if not request.assigned.done() and not self._assign(request):
                kept.append(request)
        self._pending = kept

    def _assign(self, request: PendingRequest) -> bool:
        """False if the request has to wait."""
        alive = [one for one in self._servers.replicas if one.alive]
        having = [one for one in alive if request.model in one.names]
        if self._everywhere and len(having) < len(alive):
            having = []
        eligible = [one for one in having if one not in request.tried]
        free = [one for one in eligible if one.in_flight < one.max_in_flight]
        if free:
            loads = [ReplicaLoad(one.in_flight, one.recent.match(request.blocks)) for one in free]
            replica = free[choose_replica(loads)]
            replica.in_flight += 1
            replica.recent.add(request.blocks)
            request.assigned.set_result(replica)
        elif not eligible and (error := self._failure(request)):
            request.assigned.set_exception(error)
        return request.assigned.done()

    def _failure(self, request: PendingRequest) -> EngineError | None:
        """The error of a request that no server will answer soon; None while a server is about to be ready."""
        replicas = self._servers.replicas
        if any(one.alive for one in replicas):
            if request.tried:
                return EngineError("all model servers were tried.")
            return EngineRefusalError(f"no model server has `{request.model}`: load it.", HTTPStatus.NOT_FOUND)
        if any(one.state in {ReplicaState.NEW, ReplicaState.RETURNING} for one in replicas):
            return None
        return self._servers.no_server_error()
