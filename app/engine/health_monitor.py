"""Looks after one model server: takes it out when it is ill, and lets it back when it can do what is needed."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from app.engine.capability import Needs
from app.engine.capability_probe import examine
from app.engine.replica import Replica, State
from app.engine.vllm_api import NonsenseError, ReplicaError
from app.errors import AppError, EngineError, EngineRefusalError, SettingError
from app.loop import Loop

log = structlog.get_logger(__name__)

OnReturn = Callable[[Replica], Awaitable[None]]
"""Where it raises, the server stays out, and is tried again."""


class Pace(msgspec.Struct, frozen=True):
    every: float = 1.0  # seconds between two looks, about
    patience: float = 5.0  # seconds a look may take
    misses: int = 3  # looks in a row without an answer that put a server out; a busy one may miss one
    examination: float = 60.0  # seconds that the proof of what a server can do may take
    sleepers: bool = False  # do servers sleep at times? Then each look asks


class _Sleep(msgspec.Struct):
    is_sleeping: bool


class Watch:
    """`on_return` is called before a server gets its first requests, or requests again."""

    def __init__(self, replica: Replica, needs: Needs, pace: Pace, on_return: OnReturn) -> None:
        self.replica = replica
        self.refusal: SettingError | None = None  # of the last examination: its flags must be changed
        self.looked = asyncio.Event()  # set after the first look
        self._needs, self._pace, self._on_return = needs, pace, on_return
        self.loop = Loop(f"health of {replica.url}", self._tick, pace.every)
        replica.recheck = self.loop.wake
        self._missed = 0
        self._stumbles = 0  # times in a row that it was not let in
        self._not_before = 0.0

    async def _tick(self) -> float:
        """The checks of several processes spread out by chance."""
        try:
            await self._look()
        finally:
            self.looked.set()
        return self._pace.every * random.uniform(0.75, 1.25)

    async def _look(self) -> None:
        if not await self._answers():
            return
        lost = self.replica.lost()
        if lost:
            log.warning("a model server lost adapters: was it restarted?", url=self.replica.url, lost=sorted(lost))
        elif self.replica.alive or asyncio.get_running_loop().time() < self._not_before:
            return
        await self._let_in()

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(self._pace.patience):
                await self.replica.ask("GET", "/health", None)
                if self._pace.sleepers:
                    await self._refuse_asleep()
                await self.replica.models()
        except TimeoutError:
            self._miss(EngineError(f"{self.replica.url} does not answer: look into its log."))
        except (NonsenseError, EngineRefusalError) as error:
            self._keep_out(SettingError(f"ENGINE_URLS names a server that is no vLLM: {error}"))
        except ReplicaError as error:
            if error.code:  # it says itself that it is ill
                self.replica.eject(error)
            else:
                self._miss(error)
        except EngineError as error:
            self.replica.eject(error)
        else:
            self._missed = 0
            return True
        return False

    def _miss(self, cause: EngineError) -> None:
        """A busy server may be late, and a connection may break."""
        self._missed += 1
        if self._missed >= self._pace.misses or not self.replica.alive:
            self.replica.eject(cause)

    async def _refuse_asleep(self) -> None:
        """Requests would wait in it for as long as a run updates on its GPU. Raises EngineError."""
        try:
            state: _Sleep = await self.replica.ask("GET", "/is_sleeping", _Sleep)
        except EngineRefusalError as error:
            raise EngineError(
                f"{self.replica.url} does not tell whether it sleeps: start vLLM with VLLM_SERVER_DEV_MODE=1 and "
                "--enable-sleep-mode, or set SAGE_ENGINE_SLEEP=never."
            ) from error
        if state.is_sleeping:
            raise EngineError(f"{self.replica.url} is asleep: it wakes when the update on its GPU is done.")

    async def _let_in(self) -> None:
        """What failed before, here or at requests while its health was good, is tried ever more seldom."""
        self.replica.enter(State.RETURNING)
        try:
            async with asyncio.timeout(self._pace.examination):
                found = await examine(self.replica, self._needs)
            self.replica.capabilities, self.refusal = found, None
            await self._on_return(self.replica)
        except TimeoutError:
            self._keep_out(EngineError(f"{self.replica.url} answers /health, and no request: look into its log."))
        except AppError as error:
            self._keep_out(error)
        except Exception as error:  # a defect, which the loop logs
            self._keep_out(EngineError(f"{self.replica.url} cannot be made ready: {error}"))
            raise
        else:
            self._stumbles = 0
            if self.replica.state is State.RETURNING:
                self.replica.enter(State.LIVE)
                log.info("a model server is ready", **msgspec.structs.asdict(found))
        finally:
            pause = self._pace.every * 2 ** min(self.replica.falls + self._stumbles, 5)
            self._not_before = asyncio.get_running_loop().time() + pause

    def _keep_out(self, cause: AppError) -> None:
        self._stumbles += 1
        if isinstance(cause, SettingError):
            if str(cause) != str(self.refusal):
                log.error("a model server cannot be used", url=self.replica.url, cause=str(cause))
            self.refusal = cause
        self.replica.eject(cause)
