"""Looks after one model server: takes it out when it is ill, and lets it back when it can do what is needed."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from app.engine.capability import Needs
from app.engine.examine import examine
from app.engine.replica import Replica, State
from app.errors import AppError, EngineError, SettingError

log = structlog.get_logger(__name__)

OnReturn = Callable[[Replica], Awaitable[None]]
"""Raises AppErrors only: then the server stays out, and is tried again."""


class Pace(msgspec.Struct, frozen=True):
    every: float = 1.0  # seconds between two looks, about
    patience: float = 5.0  # seconds a look may take
    misses: int = 3  # looks in a row without an answer that put a server out; a busy one may miss one
    examination: float = 60.0  # seconds that the proof of what a server can do may take


class Watch:
    """`on_return` is called before a server that was out or restarted gets requests again."""

    def __init__(self, replica: Replica, needs: Needs, pace: Pace, on_return: OnReturn) -> None:
        self.replica = replica
        self.refusal: SettingError | None = None  # of the last examination: its flags must be changed
        self.looked = asyncio.Event()  # set after the first look
        self._needs, self._pace, self._on_return = needs, pace, on_return
        self._missed = 0
        self._stumbles = 0  # times in a row that it was not let in
        self._not_before = 0.0

    async def run(self) -> None:
        """For ever. The looks of several processes spread out by chance."""
        while True:
            self.replica.doubt.clear()
            await self._look()
            self.looked.set()
            try:
                async with asyncio.timeout(self._pace.every * random.uniform(0.75, 1.25)):
                    await self.replica.doubt.wait()
            except TimeoutError:
                pass

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
                await self.replica.models()
        except TimeoutError:
            self._missed += 1
            if self._missed >= self._pace.misses or not self.replica.alive:
                self.replica.eject(EngineError(f"{self.replica.url} does not answer: look into its log."))
            return False
        except EngineError as error:
            self.replica.eject(error)
            return False
        self._missed = 0
        return True

    async def _let_in(self) -> None:
        """What failed before, here or at requests while its health was good, is tried ever more seldom."""
        first = self.replica.state is State.NEW
        self.replica.enter(State.RETURNING)
        try:
            async with asyncio.timeout(self._pace.examination):
                self.replica.capabilities = await examine(self.replica, self._needs)
            self.refusal = None
            if not first:
                await self._on_return(self.replica)
        except TimeoutError:
            self._keep_out(EngineError(f"{self.replica.url} answers /health, and no request: look into its log."))
        except AppError as error:
            self._keep_out(error)
        else:
            self._stumbles = 0
            if self.replica.state is State.RETURNING:
                self.replica.enter(State.LIVE)
        pause = self._pace.every * 2 ** min(self.replica.falls + self._stumbles, 5)
        self._not_before = asyncio.get_running_loop().time() + pause

    def _keep_out(self, cause: AppError) -> None:
        self._stumbles += 1
        if isinstance(cause, SettingError):
            if str(cause) != str(self.refusal):
                log.error("a model server cannot be used", url=self.replica.url, cause=str(cause))
            self.refusal = cause
        self.replica.eject(cause)
