"""Notices a process that lives and answers nothing."""

import time
from collections.abc import Callable
from typing import Self

import httpx
import msgspec

from app.loop import Loop

_PROBE_SECONDS = 10.0  # of one request
_INTERVAL = 5.0  # seconds between two requests


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds without an answer: of a process that has answered, and of one that starts."""

    silent: float
    start: float


class HangWatch:
    """While entered, calls `on_hang` once if `url` answers nothing for so long. Every status is an answer."""

    def __init__(self, url: str, limits: HangLimits, on_hang: Callable[[float], None]) -> None:
        self._url, self._limits, self._on_hang = url, limits, on_hang
        self._allowed = max(limits.start, limits.silent)
        self._silent = 0.0
        self._interval = min(_INTERVAL, limits.silent / 4)
        self._timeout = min(_PROBE_SECONDS, limits.silent / 2)
        self._client = httpx.AsyncClient(timeout=self._timeout, trust_env=False)
        self._loop = Loop(f"watch {url}", self._look, self._interval)

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        await self._client.aclose()

    async def _look(self) -> None:
        """Count what was waited, not what a clock shows: the supervisor may have been stopped itself."""
        began = time.monotonic()
        if await self._answers():
            self._silent, self._allowed = 0.0, self._limits.silent
            return
        before = self._silent
        self._silent += min(time.monotonic() - began, self._timeout) + self._interval
        if before < self._allowed <= self._silent:
            self._on_hang(self._allowed)

    async def _answers(self) -> bool:
        try:
            await self._client.get(self._url)
        except httpx.HTTPError:
            return False
        return True
