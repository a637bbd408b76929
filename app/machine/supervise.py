"""Runs the processes of one machine: starts them, restarts what dies, stops all together."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import httpx
import msgspec

from app.errors import AppError
from app.machine.logs import make_room, reason

_CALM_SECONDS = 60.0  # of life that make the next death a first one
_BACK_OFF = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next restart
_QUIET_SECONDS = 5.0  # a start that takes no longer needs no explanation
_ANSWER_SECONDS = 10.0  # longer than /readyz gives the parts it asks
_PR_SET_PDEATHSIG = 1


class ProcessError(AppError):
    """A process of this machine does not start."""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One process to keep alive."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ready: str = ""  # a URL that answers 200 once it can work; "" if it has none


class _Report(msgspec.Struct):
    """What /readyz says of the parts that a child builds on."""

    components: dict[str, str]


class _Born(msgspec.Struct, frozen=True):
    """A running child."""

    child: Child
    process: asyncio.subprocess.Process
    log: Path
    log_start: int  # where its own words begin


class Supervisor:
    """Keeps children alive from `start` until `stop`. Each writes to a log file of its own."""

    def __init__(
        self,
        logs: Path,
        *,
        start_seconds: float = 120.0,
        stop_seconds: float = 8.0,
        quiet_seconds: float = _QUIET_SECONDS,
    ) -> None:
        self._logs = logs
        self._start_seconds = start_seconds
        self._quiet_seconds = quiet_seconds
        self._stop_seconds = stop_seconds
        self._starting: list[_Born] = []
        self._running: dict[str, _Born] = {}
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, children: Iterable[Child]) -> None:
        """Returns at once; `ready` tells when they can work."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for child in children:
            make_room(self._logs / f"{child.name}.log")
            self._starting.append(await self._spawn(child))

    async def ready(self) -> None:
        """Returns once all can work; from then on they are kept alive. After some seconds it says what is missing.

        Raises ProcessError, with its own words, for one that dies before or is too slow.
        """
        await asyncio.gather(*(self._until_ready(born) for born in self._starting))
        self._keepers += [asyncio.create_task(self._keep(born)) for born in self._starting]
        self._starting.clear()

    async def stop(self) -> None:
        """End every child: SIGTERM to its process group, SIGKILL to what is left after some seconds."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*map(self._end, self._running.values()))
        for ended in (self._keepers, self._starting, self._running):
            ended.clear()

    async def _keep(self, born: _Born) -> None:
        loop, deaths = asyncio.get_running_loop(), 0
        while True:
            birth = loop.time()
            await born.process.wait()
            deaths = 0 if loop.time() - birth > _CALM_SECONDS else deaths + 1
            pause = _BACK_OFF[min(deaths, len(_BACK_OFF) - 1)]
            click.echo(f"{_obituary(born)}. It starts again in {pause:g} s", err=True)
            await asyncio.sleep(pause)
            _signal_group(born.process, signal.SIGKILL)  # what it left behind
            born = await self._spawn(born.child)

    async def _spawn(self, child: Child) -> _Born:
        path = self._logs / f"{child.name}.log"
        with path.open("ab") as output:
            start = output.tell()
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                env=child.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a group of its own, so that Ctrl-C reaches the supervisor alone
                preexec_fn=_die_with_parent(),
            )
        born = _Born(child, process, path, start)
        self._running[child.name] = born
        return born

    async def _end(self, born: _Born) -> None:
        process = born.process
        if process.returncode is None:
            _signal_group(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):  # SIGKILL follows
                async with asyncio.timeout(self._stop_seconds):
                    await process.wait()
        _signal_group(process, signal.SIGKILL)  # its own children, too
        await process.wait()

    async def _until_ready(self, born: _Born) -> None:
        if not born.child.ready:
            return
        clock, answer, told = asyncio.get_running_loop().time, "no answer", ""
        began = clock()
        try:
            async with (
                asyncio.timeout(self._start_seconds),
                httpx.AsyncClient(timeout=_ANSWER_SECONDS, trust_env=False) as client,
            ):
                while answer := await _shortcoming(client, born.child.ready):
                    if born.process.returncode is not None:
                        raise ProcessError(f"{born.child.name} does not start: {_last_words(born)}")
                    if answer != told and clock() - began > self._quiet_seconds:
                        click.echo(f"waiting for {born.child.name}: {answer}")
                        told = answer
                    await asyncio.sleep(0.1)
        except TimeoutError as late:
            raise ProcessError(
                f"{born.child.name} is not ready after {self._start_seconds:g} s: {answer} (its log: {born.log})"
            ) from late


async def _shortcoming(client: httpx.AsyncClient, url: str) -> str:
    """What keeps it from being ready; nothing once it is."""
    try:
        answer = await client.get(url)
    except httpx.HTTPError as error:
        return f"{url}: {error or type(error).__name__}"
    return "" if answer.status_code == httpx.codes.OK else f"{url}: {answer.status_code} {_said(answer)}"


def _said(answer: httpx.Response) -> str:
    """In one line; of /readyz only the parts that are not ready."""
    try:
        components = msgspec.json.decode(answer.content, type=_Report).components
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(answer.text[:500].split())
    return "; ".join(f"{name}: {state}" for name, state in components.items() if state != "ready")


def _last_words(born: _Born) -> str:
    return f"{reason(born.log, born.log_start)} (its log: {born.log})"


def _obituary(born: _Born) -> str:
    code = born.process.returncode or 0
    if code < 0:
        return f"{born.child.name} was killed by {signal.Signals(-code).name}"
    return f"{born.child.name} ended with exit code {code}: {_last_words(born)}"


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # already gone
        os.killpg(process.pid, number)


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux a child dies with the supervisor, however that dies and whatever the child is busy with."""
    if not hasattr(os, "pidfd_open"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
