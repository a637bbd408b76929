"""Runs the processes of one machine: starts them, restarts what dies, stops all together."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import msgspec
import structlog

from app.errors import AppError

log = structlog.get_logger()

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_BACK_OFF = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next restart; one calm minute resets it
_PR_SET_PDEATHSIG = 1


class ProcessError(AppError):
    """A process of this machine does not start."""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One process to keep alive."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ready: str = ""  # a URL that answers 200 once it can work; "" if it has none


class Supervisor:
    """Keeps children alive from `start` until `stop`. Each writes to a log file of its own."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._keepers: dict[str, asyncio.Task[None]] = {}

    async def start(self, children: Iterable[Child]) -> None:
        """Returns once all are ready. Raises ProcessError with the last line of the log of one that fails."""
        started = [(child, await self._spawn(child)) for child in children]
        try:
            await asyncio.gather(*(self._until_ready(child, process) for child, process in started))
        except ProcessError:
            await asyncio.gather(*(_end(process) for _, process in started))
            raise
        for child, process in started:
            self._keepers[child.name] = asyncio.create_task(self._keep(child, process))

    async def stop(self) -> None:
        """End every child: SIGTERM to its process group, SIGKILL to what is left after some seconds."""
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        self._keepers.clear()

    async def _keep(self, child: Child, process: asyncio.subprocess.Process) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        try:
            while True:
                born = loop.time()
                code = await process.wait()
                failures = 0 if loop.time() - born > 60 else failures + 1
                pause = _BACK_OFF[min(failures, len(_BACK_OFF) - 1)]
                log.warning("process died, restarting", name=child.name, code=code, seconds=pause)
                await asyncio.sleep(pause)
                process = await self._spawn(child)
        finally:
            await _end(process)

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
        with (self._logs / f"{child.name}.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *child.argv,
                env=child.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a group of its own, so that Ctrl-C reaches the supervisor alone
                preexec_fn=_die_with_parent(),
            )

    async def _until_ready(self, child: Child, process: asyncio.subprocess.Process) -> None:
        if not child.ready:
            return
        async with httpx.AsyncClient(timeout=2) as client, _deadline(child):
            while not await _answers(client, child.ready):
                if process.returncode is not None:
                    raise ProcessError(f"{child.name} does not start: {self._last_line(child)}")
                await asyncio.sleep(0.1)

    def _last_line(self, child: Child) -> str:
        path = self._logs / f"{child.name}.log"
        lines = path.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (all of it in {path})"


class _deadline:  # noqa: N801 - reads as a statement
    """Turns a time-out of the block into a ProcessError that names the child."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._timeout = asyncio.timeout(_START_SECONDS)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError as late:
            raise ProcessError(f"{self._child.name} is not ready after {_START_SECONDS:g} seconds") from late


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):  # SIGKILL follows
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
    _signal_group(process, signal.SIGKILL)  # its own children, too
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # already gone
        os.killpg(process.pid, number)


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux a child is told when the supervisor dies, however it dies."""
    if not hasattr(os, "pidfd_open"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
