"""Supervises child processes: starts each in a group and with a log file of its own, restarts those that die or
hang, says why one ended, keeps the logs small, and stops them together.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import click
import httpx
import msgspec

from app.base.errors import AppError
from app.base.loop import UNRESPONSIVE, LivenessListener, Loop, Looping
from app.base.processes import end_with_parent
from app.db import runners

_SECONDS = 1.0  # between two looks at the sizes of logs
_TAIL_BYTES = 64 << 10  # of a log, read for the reason of a death
_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/vmstat")  # where the kernel counts what it ended for lack of memory
START_SECONDS = 120.0
_PROBE_SECONDS = 10.0  # of one request to a process; longer than the timeout of the checks of /readyz
_INTERVAL = 5.0  # seconds between two looks for a sign of life
_STABLE_SECONDS = 60.0  # of uptime after which the restart backoff resets
_RESTART_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds
_START_DEATHS = 3  # of a child, after which `ready` gives up
_QUIET_SECONDS = 5.0  # a start that takes no longer is not reported


def rotation(directory: Path, max_bytes: int = 10 << 20, keep: int = 3) -> Loop:
    """While entered, rotates the logs in the data directory."""

    async def rotate_all() -> None:
        for path in _logs(directory):
            rotate(path, max_bytes, keep)

    return Loop("rotate logs", rotate_all, _SECONDS, expected=(OSError,))


def rotate(path: Path, max_bytes: int, keep: int) -> None:
    """Empty a log beyond `max_bytes`, after a copy to `<name>.1`; older copies move on to `<name>.2` and so on, up
    to `keep` of them. Its process goes on writing to the same file, which it must have opened to append.

    On a full disk, what cannot be copied is dropped.
    """
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, keep + 1)]
    for older, newer in zip(reversed(copies[1:]), reversed(copies[:-1]), strict=True):
        if newer.exists():
            newer.replace(older)
    if copies:
        try:
            shutil.copyfile(path, copies[0])
        except OSError:
            copies[0].unlink(missing_ok=True)
    os.truncate(path, 0)


def last_error(path: Path, start: int) -> str:
    """One line about why a process died: the last error after byte `start`, or the last line."""
    try:
        lines = _tail(path, start)
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["it logged nothing"])[-1].removeprefix("Error: ")


def _says_what_to_mend(path: Path, start: int) -> bool:
    """The last line after byte `start` is the message of a command that refuses to run."""
    try:
        return any(line.startswith("Error: ") for line in _tail(path, start)[-1:])
    except OSError:
        return False


def _tail(path: Path, start: int) -> list[str]:
    """The last lines after byte `start`, or of the whole log if it is shorter, because it was rotated."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start if start <= size else 0, size - _TAIL_BYTES))
        return log.read().decode(errors="replace").strip().splitlines()


def _logs(data_dir: Path) -> Iterator[Path]:
    yield from (data_dir / "logs").glob("*.log")
    yield data_dir / "postgres" / "log"
    yield from (data_dir / "runs").glob("*/log")


def kills() -> int | None:
    """How many it has ended in this process's cgroup, or else on this machine; None if it does not say."""
    for path in [*_cgroup_files(), _MACHINE]:
        try:
            return counted(path.read_text())
        except (OSError, ValueError):
            continue
    return None


def counted(text: str) -> int:
    """The counter in memory.events, memory.oom_control or vmstat. Raises ValueError if it is not there.

    >>> counted("oom 3\\noom_kill 2\\noom_group_kill 0\\n")
    2
    """
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    raise ValueError("it has no oom_kill")


def _cgroup_files() -> list[Path]:
    """Of version 2, or of the memory controller of version 1; as a container sees them, or the host."""
    try:
        rows = [row.split(":", 2) for row in _CGROUP.read_text().splitlines()]
    except OSError:
        return []
    found = list[Path]()
    for _, controllers, path in rows:
        if controllers in ("", "memory"):
            name = "memory.oom_control" if controllers else "memory.events"
            root = _MOUNT / controllers
            found += [root / path.lstrip("/") / name, root / name]
    return found


class ChildProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process to keep alive."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ready: str = ""  # a URL that answers 200 once it is ready; "" if it has none
    alive: str = ""  # a URL that answers, whatever it says, unless the process hangs; "" if it has none
    starts_with: str = ""  # what it does before it is ready, if that takes long
    start_seconds: float = START_SECONDS  # the most until it is ready, and until its first sign of life
    reports: bool = False  # signs of life to NOTIFY_SOCKET, of which the supervisor sets the address


class StartedChild(msgspec.Struct, frozen=True):
    child: ChildProcess
    process: asyncio.subprocess.Process
    log: Path
    log_start: int  # byte offset of the output of this start
    oom_kills: int | None  # before it

    def signal(self, number: signal.Signals) -> None:
        """To the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):  # already gone
            os.killpg(self.process.pid, number)

    async def end(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL after some seconds."""
        if self.process.returncode is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):  # SIGKILL follows
                async with asyncio.timeout(seconds):
                    await self.process.wait()
        self.signal(signal.SIGKILL)  # with its child processes
        await self.process.wait()

    def cause_of_death(self) -> str:
        """What follows the name of the child in a sentence, after it has ended."""
        code = self.process.returncode or 0
        if code >= 0:
            return f"ended with exit code {code}: {self.last_error()}"
        if -code == UNRESPONSIVE:
            return f"did not respond, and its watchdog ended it; the log shows where (log: {self.log})"
        name = signal.Signals(-code).name
        return f"was killed by {name}{self._lack_of_memory() if name == 'SIGKILL' else ''}"

    def refused(self) -> bool:
        """It ended by itself and told people what to mend: another start would end the same."""
        return self.process.returncode == 1 and _says_what_to_mend(self.log, self.log_start)

    def last_error(self) -> str:
        return f"{last_error(self.log, self.log_start)} (log: {self.log})"

    def _lack_of_memory(self) -> str:
        before, now = self.oom_kills, kills()
        if before is None or now is None:
            return ", which may be the kernel's, for lack of memory"
        return ", and the kernel ended a process for lack of memory meanwhile" if now > before else ""


async def _start_child(child: ChildProcess, logs: Path) -> StartedChild:
    """Raises OSError if the system lacks memory, processes or disk space for it, or there is no such program."""
    path = logs / f"{child.name}.log"
    with path.open("ab") as output:
        start = output.tell()
        process = await asyncio.create_subprocess_exec(
            *child.argv,
            env=child.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a group of its own, so that Ctrl-C reaches only the supervisor
            preexec_fn=end_with_parent,
        )
    return StartedChild(child, process, path, start, kills())


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


class HangWatch(Looping):
    """While entered, calls `on_hang` once, with the reason, if there is no sign of life for so long."""

    def __init__(self, probe: LivenessProbe, limits: HangLimits, on_hang: Callable[[str], None]) -> None:
        self._probe, self._limits, self._on_hang = probe, limits, on_hang
        self._allowed = max(limits.start, limits.silent)
        self._silent = 0.0
        self._interval = min(_INTERVAL, limits.silent / 4)
        self._timeout = min(_PROBE_SECONDS, limits.silent / 2)
        self._loop = Loop("watch a process", self._look, self._interval)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
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
            self._started = await _start_child(self.child, self._logs)
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
