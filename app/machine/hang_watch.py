"""Notices a process that lives and gives no sign of life."""

import time
from collections.abc import Callable
from typing import Protocol, Self

import httpx
import msgspec

from app.liveness import LivenessListener
from app.loop import Loop

_PROBE_SECONDS = 10.0  # of one request
_INTERVAL = 5.0  # seconds between two looks


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds without a sign of life: of a process that has given one, and of one that starts."""

    silent: float
    start: float


class LivenessProbe(Protocol):
    """Asks one process."""

    silence: str
    """What a process has done that the probe does not hear of, in a sentence about it."""

    async def is_alive(self, seconds: float) -> bool:
        """Waits for at most so long."""

    async def close(self) -> None: ...


class UrlProbe:
    """Requests a URL of the process. Every status is an answer."""

    silence = "answered nothing"

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.AsyncClient(trust_env=False)

    async def is_alive(self, seconds: float) -> bool:
        try:
            await self._client.get(self._url, timeout=seconds)
        except httpx.HTTPError:
            return False
        return True

    async def close(self) -> None:
        await self._client.aclose()


class ReportProbe:
    """Reads the reports of the process: those from now on, not those of one that had the address before."""

    silence = "gave no sign of life"

    def __init__(self, listener: LivenessListener) -> None:
        self._listener = listener
        listener.heard()

    async def is_alive(self, seconds: float) -> bool:  # noqa: ARG002  it need not wait
        return self._listener.heard()

    async def close(self) -> None:
        """The listener outlives the process."""


class HangWatch:
    """While entered, calls `on_hang` once, with the reason, if there is no sign of life for so long."""

    def __init__(self, probe: LivenessProbe, limits: HangLimits, on_hang: Callable[[str], None]) -> None:
        self._probe, self._limits, self._on_hang = probe, limits, on_hang
        self._allowed = max(limits.start, limits.silent)
        self._silent = 0.0
        self._interval = min(_INTERVAL, limits.silent / 4)
        self._timeout = min(_PROBE_SECONDS, limits.silent / 2)
        self._loop = Loop("watch a process", self._look, self._interval)

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        await self._probe.close()

    async def _look(self) -> None:
        """Count what was waited, not what a clock shows: the supervisor may have been stopped itself."""
        began = time.monotonic()
        if await self._probe.is_alive(self._timeout):
            self._silent, self._allowed = 0.0, self._limits.silent
            return
        before = self._silent
        self._silent += min(time.monotonic() - began, self._timeout) + self._interval
        if before < self._allowed <= self._silent:
            self._on_hang(f"{self._probe.silence} for {self._allowed:g} s")
