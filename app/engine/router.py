"""A router in front of the model servers, which gets every generation and chooses the server itself."""

from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from app.engine.capability_probe import probe_generation
from app.engine.discovery import Servers
from app.engine.dispatcher import Dispatcher
from app.engine.health_monitor import HealthChecks, HealthMonitor
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica, ReplicaLimits
from app.engine.vllm_api import ReplicaError
from app.errors import AdapterError, EngineError, EngineRefusalError, SettingError

_ATTEMPTS = 3  # at a generation that a server behind it broke off
_CONNECTIONS = 1024  # the dispatcher limits requests, by the number of servers


class Router:
    """The servers behind it load and prove adapters one by one; it must pass on token ids and logprobs unchanged.

    It may send a request to any of its servers, so none is sent while one that answers has failed its proof.
    """

    def __init__(self, url: str, limits: ReplicaLimits, checks: HealthChecks, servers: Servers) -> None:
        limits = msgspec.structs.replace(
            limits, max_in_flight=_CONNECTIONS, max_failures=None, setting="SAGE_ENGINE_ROUTER_URL"
        )
        self._servers = servers
        self.replica = Replica(url.rstrip("/"), limits, lambda: None)
        checks = msgspec.structs.replace(checks, may_sleep=False)
        self.monitor = HealthMonitor(self.replica, probe_generation, checks, _nothing, health="")

    async def close(self) -> None:
        await self.monitor.loop.stop()
        await self.replica.close()

    async def complete(
        self, dispatcher: Dispatcher, prompt_ids: Sequence[int], *, model: str, sampling: Sampling
    ) -> Completion:
        """Raises EngineRefusalError: with 404 if a server behind it lacks the model; EngineError if no request may
        be sent, or the generation was broken off repeatedly.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            await self.check()
            slot = await dispatcher.acquire(model, (), ())
            try:
                return await self.replica.complete(prompt_ids, model=model, sampling=sampling)
            except ReplicaError:
                self._servers.recheck()
                if attempt == _ATTEMPTS:
                    raise
            except EngineRefusalError as error:
                if error.code == HTTPStatus.NOT_FOUND:
                    self._servers.recheck()  # one of them was restarted, or is new
                raise
            finally:
                dispatcher.release(slot)
        raise AssertionError

    async def check(self) -> None:
        """Raises EngineError if no request may be sent."""
        await self.monitor.checked.wait()
        if self.fault:
            raise EngineError(self.fault)

    @property
    def fault(self) -> str:
        """Why no request may be sent; "" if requests may."""
        if self.replica.cause is not None:
            return f"the router {self.replica.url} is out: {self.replica.cause}"
        unproven = [one for one in self._servers.replicas if _has_failed_proof(one)]
        return "; ".join(
            f"the router {self.replica.url} may send requests to {one.url}, which must not serve: {one.cause} "
            "Restart or remove it"
            for one in unproven
        )


def _has_failed_proof(replica: Replica) -> bool:
    """It answers, but wrongly; one that is down gets no requests from a router."""
    return isinstance(replica.cause, SettingError | AdapterError)


async def _nothing(_: Replica) -> None:
    """A router has no adapters of its own."""
