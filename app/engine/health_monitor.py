"""Checks one model server: takes it out when it fails, and readmits it once it has proved its capabilities."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from app.engine.capability import Capabilities
from app.engine.replica import Replica, ReplicaState
from app.engine.vllm_api import InvalidResponseError, ReplicaError
from app.errors import AppError, EngineError, EngineRefusalError, SettingError
from app.loop import Loop

log = structlog.get_logger(__name__)

OnReturn = Callable[[Replica], Awaitable[None]]
"""If it raises, the server stays out and is tried again."""

Prove = Callable[[Replica], Awaitable[Capabilities]]
"""Raises SettingError where the server's flags must be changed, EngineError where it cannot be reached now."""


class HealthChecks(msgspec.Struct, frozen=True):
    interval: float = 1.0  # seconds between two checks, on average
    timeout: float = 5.0  # seconds of one check
    max_misses: int = 3  # checks in a row without an answer that put a server out; a busy one may miss one
    probe_timeout: float = 60.0  # seconds of a capability probe
    may_sleep: bool = False  # servers may be put to sleep, so each check looks for that


class _Sleep(msgspec.Struct):
    is_sleeping: bool


class HealthMonitor:
    """`on_return` is called before a server gets its first requests, and before it gets requests again."""

    def __init__(
        self,
        replica: Replica,
        prove: Prove,
        checks: HealthChecks,
        on_return: OnReturn,
        *,
        health: str = "/health",
    ) -> None:
        """`health` is the path that a healthy server answers; "": none beside `/v1/models`."""
        self.replica = replica
        self.setting_error: SettingError | None = None  # of the last probe: the server's flags must be changed
        self.checked = asyncio.Event()  # set after the first check
        self._prove, self._checks, self._on_return, self._health = prove, checks, on_return, health
        self.loop = Loop(f"health of {replica.url}", self._tick, checks.interval)
        replica.recheck = self.loop.wake
        self._misses = 0
        self._failed_admissions = 0  # in a row
        self._not_before = 0.0

    async def _tick(self) -> float:
        """Jittered, so that several processes do not check at the same time."""
        try:
            await self._check()
        finally:
            self.checked.set()
        return self._checks.interval * random.uniform(0.75, 1.25)

    async def _check(self) -> None:
        if not await self._is_healthy():
            return
        lost = self.replica.take_lost()
        if lost:
            log.warning("a model server lost adapters: was it restarted?", url=self.replica.url, lost=sorted(lost))
        elif self.replica.alive or asyncio.get_running_loop().time() < self._not_before:
            return
        await self._readmit()

    async def _is_healthy(self) -> bool:
        try:
            async with asyncio.timeout(self._checks.timeout):
                await self._ask()
        except TimeoutError:
            self._count_miss(EngineError(f"{self.replica.url} does not answer: check its log."))
        except (InvalidResponseError, EngineRefusalError) as error:
            self._reject(SettingError(f"{self.replica.setting} names a server that is not vLLM: {error}"))
        except ReplicaError as error:
            if error.code and not self._health:  # a router that answers, for one of its servers that does not
                return True
            if error.code:  # it reports itself as unhealthy
                self.replica.eject(error)
            else:
                self._count_miss(error)
        except EngineError as error:
            self.replica.eject(error)
        else:
            self._misses = 0
            return True
        return False

    async def _ask(self) -> None:
        if self._health:
            await self.replica.ask("GET", self._health, None)
        if self._checks.may_sleep:
            await self._check_awake()
        await self.replica.models()

    def _count_miss(self, cause: EngineError) -> None:
        """A busy server may be late, and a connection may break, so one miss is tolerated."""
        self._misses += 1
        if self._misses >= self._checks.max_misses or not self.replica.alive:
            self.replica.eject(cause)

    async def _check_awake(self) -> None:
        """Raises EngineError if the server sleeps: requests would wait as long as a run updates on its GPU."""
        try:
            state: _Sleep = await self.replica.ask("GET", "/is_sleeping", _Sleep)
        except EngineRefusalError as error:
            raise EngineError(
                f"{self.replica.url} does not report whether it sleeps: start vLLM with "
                "VLLM_SERVER_DEV_MODE=1 and "
                "--enable-sleep-mode, or set SAGE_ENGINE_SLEEP=never."
            ) from error
        if state.is_sleeping:
            raise EngineError(f"{self.replica.url} is asleep: it wakes when the update on its GPU has ended.")

    async def _readmit(self) -> None:
        """Back off exponentially after failures, here or of requests while /health was good."""
        self.replica.set_state(ReplicaState.RETURNING)
        try:
            async with asyncio.timeout(self._checks.probe_timeout):
                capabilities = await self._prove(self.replica)
            self.replica.capabilities, self.setting_error = capabilities, None
            await self._on_return(self.replica)
        except TimeoutError:
            self._reject(EngineError(f"{self.replica.url} answers /health but no request: check its log."))
        except AppError as error:
            self._reject(error)
        except Exception as error:  # a defect, which the loop logs
            self._reject(EngineError(f"{self.replica.url} cannot be made ready: {error}"))
            raise
        else:
            self._failed_admissions = 0
            if self.replica.state is ReplicaState.RETURNING:
                self.replica.set_state(ReplicaState.LIVE)
                log.info("a model server is ready", **msgspec.structs.asdict(capabilities))
        finally:
            pause = self._checks.interval * 2 ** min(self.replica.ejections + self._failed_admissions, 5)
            self._not_before = asyncio.get_running_loop().time() + pause

    def _reject(self, cause: AppError) -> None:
        self._failed_admissions += 1
        if isinstance(cause, SettingError):
            if str(cause) != str(self.setting_error):
                log.error("a model server cannot be used", url=self.replica.url, cause=str(cause))
            self.setting_error = cause
        self.replica.eject(cause)
