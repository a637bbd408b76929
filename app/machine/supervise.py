"""Supervises child processes: starts them, restarts those that die, and stops them together."""

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
from app.machine.logs import last_error, rotate

_STABLE_SECONDS = 60.0  # of uptime after which the restart backoff resets
_RESTART_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds
_QUIET_SECONDS = 5.0  # a start that takes no longer is not reported
_PROBE_SECONDS = 10.0  # longer than the timeout of the checks of /readyz
_PR_SET_PDEATHSIG = 1


class ProcessError(AppError):
    """A child process does not start."""


class ChildProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process to keep alive."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ready: str = ""  # a URL that answers 200 once it is ready; "" if it has none


class _ReadyzBody(msgspec.Struct):
    """The part of the body of /readyz that is read here."""

    components: dict[str, str]


class _Running(msgspec.Struct, frozen=True):
    """A started child."""

    child: ChildProcess
    process: asyncio.subprocess.Process
    log: Path
    log_start: int  # byte offset of the output of this start


class Supervisor:
    """Keeps child processes alive from `start` until `stop`. Each has a log file of its own."""

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
        self._starting: list[_Running] = []
        self._processes: dict[str, _Running] = {}
        self._restarters: list[asyncio.Task[None]] = []

    async def start(self, children: Iterable[ChildProcess]) -> None:
        """Start them without waiting; `ready` waits until they are ready."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for child in children:
            rotate(self._logs / f"{child.name}.log")
            self._starting.append(await self._spawn(child))

    async def ready(self) -> None:
        """Wait until all are ready; from then on they are restarted if they die. Reports what it waits for.

        Raises ProcessError, with the last error in its log, if one dies before or is too slow.
        """
        await asyncio.gather(*(self._until_ready(running) for running in self._starting))
        self._restarters += [asyncio.create_task(self._restart(running)) for running in self._starting]
        self._starting.clear()

    async def stop(self) -> None:
        """Stop every child: SIGTERM to its process group, and SIGKILL after some seconds."""
        for restarter in self._restarters:
            restarter.cancel()
        await asyncio.gather(*self._restarters, return_exceptions=True)
        await asyncio.gather(*map(self._end, self._processes.values()))
        for ended in (self._restarters, self._starting, self._processes):
            ended.clear()

    async def _restart(self, running: _Running) -> None:
        loop, deaths = asyncio.get_running_loop(), 0
        while True:
            birth = loop.time()
            await running.process.wait()
            deaths = 0 if loop.time() - birth > _STABLE_SECONDS else deaths + 1
            pause = _RESTART_DELAYS[min(deaths, len(_RESTART_DELAYS) - 1)]
            click.echo(f"{_cause_of_death(running)}. Restarting in {pause:g} s", err=True)
            await asyncio.sleep(pause)
            _signal_group(running.process, signal.SIGKILL)  # processes that it left behind
            try:
                running = await self._spawn(running.child)
            except OSError as error:  # of memory or processes that the system lacks: try again, less often
                click.echo(f"{running.child.name} cannot be started: {error}", err=True)

    async def _spawn(self, child: ChildProcess) -> _Running:
        path = self._logs / f"{child.name}.log"
        with path.open("ab") as output:
            start = output.tell()
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                env=child.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a group of its own, so that Ctrl-C reaches only the supervisor
                preexec_fn=_die_with_parent(),
            )
        running = _Running(child, process, path, start)
        self._processes[child.name] = running
        return running

    async def _end(self, running: _Running) -> None:
        process = running.process
        if process.returncode is None:
            _signal_group(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):  # SIGKILL follows
                async with asyncio.timeout(self._stop_seconds):
                    await process.wait()
        _signal_group(process, signal.SIGKILL)  # with its child processes
        await process.wait()

    async def _until_ready(self, running: _Running) -> None:
        if not running.child.ready:
            return
        clock, missing, reported = asyncio.get_running_loop().time, "no answer", ""
        began = clock()
        try:
            async with (
                asyncio.timeout(self._start_seconds),
                httpx.AsyncClient(timeout=_PROBE_SECONDS, trust_env=False) as client,
            ):
                while missing := await _not_ready(client, running.child.ready):
                    self._raise_if_one_died()
                    if missing != reported and clock() - began > self._quiet_seconds:
                        click.echo(f"waiting for {running.child.name}: {missing}")
                        reported = missing
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            limit = f"{self._start_seconds:g} s"
            raise ProcessError(
                f"{running.child.name} is not ready after {limit}: {missing} (log: {running.log})"
            ) from error

    def _raise_if_one_died(self) -> None:
        """Also one without a URL of its own: another may wait for it."""
        for running in self._starting:
            if running.process.returncode is not None:
                raise ProcessError(f"{running.child.name} does not start: {_last_error(running)}")


async def _not_ready(client: httpx.AsyncClient, url: str) -> str:
    """Why the child is not ready; "" once it is."""
    try:
        answer = await client.get(url)
    except httpx.HTTPError as error:
        return f"{url}: {error or type(error).__name__}"
    return "" if answer.status_code == httpx.codes.OK else f"{url}: {answer.status_code} {_summary(answer)}"


def _summary(answer: httpx.Response) -> str:
    """The response in one line: of /readyz only the components that are not ready."""
    try:
        components = msgspec.json.decode(answer.content, type=_ReadyzBody).components
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(answer.text[:500].split())
    return "; ".join(f"{name}: {state}" for name, state in components.items() if state != "ready")


def _last_error(running: _Running) -> str:
    return f"{last_error(running.log, running.log_start)} (log: {running.log})"


def _cause_of_death(running: _Running) -> str:
    code = running.process.returncode or 0
    if code < 0:
        return f"{running.child.name} was killed by {signal.Signals(-code).name}"
    return f"{running.child.name} ended with exit code {code}: {_last_error(running)}"


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # already gone
        os.killpg(process.pid, number)


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux, the kernel kills a child when the supervisor dies, however that happens."""
    if not hasattr(os, "pidfd_open"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
