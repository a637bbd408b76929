"""Supervises child processes: starts them, restarts those that die or hang, and stops them together."""

import asyncio
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import click
import httpx
import msgspec

from app.db import runners
from app.errors import AppError
from app.liveness import LivenessListener
from app.loop import Loop
from app.machine.child_process import ChildProcess, StartedChild, start_child
from app.machine.hang_watch import HangLimits, HangWatch, LivenessProbe, ReportProbe, UrlProbe

_STABLE_SECONDS = 60.0  # of uptime after which the restart backoff resets
_RESTART_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds
_START_DEATHS = 3  # of a child, after which `ready` gives up
_QUIET_SECONDS = 5.0  # a start that takes no longer is not reported
_PROBE_SECONDS = 10.0  # longer than the timeout of the checks of /readyz


class ProcessError(AppError):
    """A child process does not start."""


class _ReadyzBody(msgspec.Struct):
    """The part of the body of /readyz that is read here."""

    components: dict[str, str]


class Supervisor:
    """Keeps child processes alive from `start` until `stop`. Each has a log file of its own."""

    def __init__(
        self,
        logs: Path,
        *,
        stop_seconds: float = 8.0,
        quiet_seconds: float = _QUIET_SECONDS,
        hang_seconds: float = 60.0,
    ) -> None:
        self._logs = logs
        self._quiet_seconds = quiet_seconds
        self._stop_seconds = stop_seconds
        self._hang_seconds = hang_seconds
        self._starting: list[_KeptChild] = []
        self._children: list[_KeptChild] = []

    async def start(self, children: Iterable[ChildProcess]) -> None:
        """Start them without waiting; `ready` waits until they are ready. From now on they are restarted."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for child in children:
            kept = _KeptChild(child, self._logs, self._hang_seconds)
            self._children.append(kept)
            self._starting.append(kept)
            await kept.start()

    async def ready(self) -> None:
        """Wait until all are ready. Reports what it waits for.

        Raises ProcessError, with the last error in its log, if one refuses to run, dies several times before, or
        is too slow.
        """
        await asyncio.gather(*(self._until_ready(kept) for kept in self._starting))
        for kept in self._starting:
            kept.has_started = True
        self._starting.clear()

    async def stop(self) -> None:
        """Stop every child: SIGTERM to its process group, and SIGKILL after some seconds."""
        await asyncio.gather(*(kept.stop(self._stop_seconds) for kept in self._children))
        self._starting.clear()
        self._children.clear()

    async def _until_ready(self, kept: "_KeptChild") -> None:
        if not kept.child.ready:
            return
        clock, missing, reported = asyncio.get_running_loop().time, "no answer", ""
        began = clock()
        try:
            async with (
                asyncio.timeout(kept.child.start_seconds),
                httpx.AsyncClient(timeout=_PROBE_SECONDS, trust_env=False) as client,
            ):
                while missing := await _not_ready(client, kept.child.ready):
                    self._raise_if_one_died()
                    if missing != reported and clock() - began > self._quiet_seconds:
                        doing = f" ({kept.child.starts_with})" if kept.child.starts_with else ""
                        waits = f"{kept.child.name}{doing}: {missing}"
                        click.echo(f"waiting for {'the runners' if missing == runners.NONE_LIVE else waits}")
                        reported = missing
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            limit = f"{kept.child.start_seconds:g} s"
            raise ProcessError(
                f"{kept.child.name} is not ready after {limit}: {missing} (log: {kept.log})"
            ) from error

    def _raise_if_one_died(self) -> None:
        """Also one without a URL of its own: another may wait for it."""
        for kept in self._starting:
            if kept.refused or kept.deaths >= _START_DEATHS:
                reason = kept.cause if kept.refused else f"it {kept.cause}"
                raise ProcessError(f"{kept.child.name} does not start: {reason}")


class _KeptChild:
    """One child, restarted until it is stopped, whatever goes wrong."""

    def __init__(self, child: ChildProcess, logs: Path, hang_seconds: float) -> None:
        self.child = child
        self.log = logs / f"{child.name}.log"
        self.deaths = 0  # in a row, each soon after its start
        self.cause = ""  # of the last one
        self.has_started = False  # with all others that it was started with
        self.refused = False  # to run at all
        self._logs, self._hang_limits = logs, HangLimits(silent=hang_seconds, start=child.start_seconds)
        self._started: StartedChild | None = None
        self._hung = ""
        self._listener: LivenessListener | None = None
        self._lives = Loop(f"keep {child.name}", self._live, _RESTART_DELAYS[-1])

    async def start(self) -> None:
        if self.child.reports:
            self._listener = LivenessListener()
            env = self.child.env | {"NOTIFY_SOCKET": self._listener.address}
            self.child = msgspec.structs.replace(self.child, env=env)
        await self._spawn()
        self._lives.start()

    async def stop(self, seconds: float) -> None:
        await self._lives.stop()
        if self._started is not None:
            await self._started.end(seconds)
        if self._listener is not None:
            self._listener.close()

    async def _live(self) -> float:
        """Wait until it dies. Returns the seconds until it is started again."""
        clock = asyncio.get_running_loop().time
        if self._started is None:
            await self._spawn()
        started, born = self._started, clock()
        if started is not None:
            async with AsyncExitStack() as stack:
                if (probe := self._probe()) is not None:
                    await stack.enter_async_context(HangWatch(probe, self._hang_limits, self._kill_hung))
                await started.process.wait()
            self._started = None
            self.refused = not self.has_started and started.refused()
            self.cause = started.last_error() if self.refused else self._hung or started.cause_of_death()
            started.signal(signal.SIGKILL)  # processes that it left behind
        self._hung = ""
        self.deaths = 0 if clock() - born > _STABLE_SECONDS else self.deaths + 1
        pause = _RESTART_DELAYS[min(self.deaths, len(_RESTART_DELAYS) - 1)]
        if self.refused:
            return _RESTART_DELAYS[-1]  # `ready` raises before
        click.echo(f"{self.child.name} {self.cause}. Restarting in {pause:g} s", err=True)
        return pause

    async def _spawn(self) -> None:
        try:
            self._started = await start_child(self.child, self._logs)
        except OSError as error:  # of memory, processes or disk space that the system lacks
            self.cause = f"cannot be started: {error}"

    def _probe(self) -> LivenessProbe | None:
        if self._listener is not None:
            return ReportProbe(self._listener)
        return UrlProbe(self.child.alive) if self.child.alive else None

    def _kill_hung(self, reason: str) -> None:
        if self._started is not None:
            self._hung = f"{reason} and was killed"
            self._started.signal(signal.SIGKILL)


async def _not_ready(client: httpx.AsyncClient, url: str) -> str:
    """Why the child is not ready; "" once it is."""
    try:
        answer = await client.get(url)
    except httpx.HTTPError as error:
        return f"{url}: {error or type(error).__name__}"
    if answer.status_code == httpx.codes.OK:
        return ""
    summary = _summary(answer)
    return summary if summary == runners.NONE_LIVE else f"{url}: {answer.status_code} {summary}"


def _summary(answer: httpx.Response) -> str:
    """The response in one line: of /readyz only the components that are not ready, those with the same reason
    together; only that no runner has reported, if that is all.
    """
    try:
        components = msgspec.json.decode(answer.content, type=_ReadyzBody).components
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(answer.text[:500].split())
    by_reason: dict[str, list[str]] = {}
    for name, state in components.items():
        if state != "ready":
            by_reason.setdefault(state, []).append(name)
    if len(by_reason) == 1 and next(iter(by_reason)).startswith(runners.NONE_LIVE):
        return runners.NONE_LIVE
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
