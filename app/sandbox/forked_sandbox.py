"""A sandbox that forks a confined process from a warm interpreter for every session."""

import asyncio
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Self

from app.base.errors import SandboxError
from app.base.processes import shortage_of
from app.base.values import Json
from app.sandbox import forks
from app.sandbox.cgroup import ControlGroups, SharedLimits, UnusableCgroupError
from app.sandbox.confined_process import ConfinedProcess, UnusableSkillError
from app.sandbox.forks import Fork, Zygote, find_bwrap, launch
from app.sandbox.protocol import Function, HostCall, SessionLimits
from app.sandbox.session import ForkedSession, SkillProcesses

_CHECK = "start-check"  # a project of no tasks
_PATIENCE = 3  # times `fork_seconds` without an answer, until a warm process without sessions is replaced


class ForkedSandbox:
    """Fulfils `Sandbox`. Any number of concurrent sessions, none of which takes a thread of the host.

    `bwrap=False` disables bubblewrap; `fork_seconds` is how long a session may take to start; `shared` limits all
    sessions of a project together, where control groups allow.
    """

    def __init__(
        self, *, bwrap: bool = True, fork_seconds: float = 10.0, shared: SharedLimits | None = None
    ) -> None:
        self._why_no_bwrap = "" if bwrap else "switched off"
        self._fork_seconds = fork_seconds
        self._shared = shared
        self._groups: ControlGroups | None = None
        self._why_no_groups = "switched off"
        self._bpf = b""
        self._zygote: Zygote | None = None
        self._zygote_lock = asyncio.Lock()
        self._sessions: set[ForkedSession] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the zygote and check that a session opens. Raises SandboxError with what to install."""
        if sys.platform != "linux":
            raise SandboxError("the sandbox needs Linux: run the server in its container")
        self._bpf = await asyncio.to_thread(forks.build)
        if not self._why_no_bwrap and find_bwrap() is None:
            self._why_no_bwrap = "not installed"
        if self._shared is not None:
            try:
                self._groups = await asyncio.to_thread(ControlGroups.find, self._shared)
            except UnusableCgroupError as error:
                self._why_no_groups = str(error)
        async with self._zygote_lock:
            self._zygote = await self._launch()
        await self._check()

    async def _check(self) -> None:
        """Open a session; without groups, if a process cannot be moved into one."""
        if self._groups is not None:
            try:
                session = await self.open({}, _no_call, SessionLimits(project=_CHECK))
                return await session.close()
            except SandboxError as error:
                if shortage_of(error) is not None:
                    raise
                self._groups, self._why_no_groups = None, str(error)
        session = await self.open({}, _no_call, SessionLimits())
        await session.close()

    async def close(self) -> None:
        """End every session and the zygote."""
        for session in list(self._sessions):
            await session.close()
        self._sessions.clear()
        async with self._zygote_lock:
            self._bpf = b""  # a session that is opened later starts no new zygote
            if self._zygote is not None:
                await self._zygote.end()
                self._zygote = None
        if self._groups is not None:
            await asyncio.to_thread(self._groups.remove)

    def describe(self) -> str:
        """One line for the start-up log: the layers of confinement in place."""
        if self._zygote is None:
            return "sandbox: not started"
        why_not = self._why_no_bwrap
        namespaces = f"without bubblewrap ({why_not})" if why_not else "in bubblewrap namespaces"
        layers = f"forked CPython {self._zygote.python}, seccomp, uid {self._zygote.uid}, {namespaces}"
        why_no_groups = "" if self._groups else f" ({self._why_no_groups})"
        shared = f"{'without' if why_no_groups else 'with'} limits of memory and processes per project"
        return f"sandbox: {layers}, {shared}{why_no_groups}"

    async def open(
        self,
        apis: Mapping[str, Sequence[str]],
        call: HostCall,
        limits: SessionLimits,
        *,
        prelude: Sequence[Function] = (),
        seed: int | None = None,
        now: datetime | None = None,
    ) -> ForkedSession:
        """Raises SandboxError if a prelude function does not load, naming it."""
        setup = _setup(apis, limits, seed, now)
        process = await self._process(limits)
        session = ForkedSession(
            process, call=call, limits=limits,
            apis=frozenset(f"{app}.{name.rpartition('=')[2]}" for app, names in apis.items() for name in names),
            skills=SkillProcesses(prelude, partial(self._process, limits), setup),
        )  # fmt: skip
        self._sessions = {known for known in self._sessions if known.alive} | {session}
        try:
            functions = [[function.name, function.source] for function in prelude]
            await process.load(setup | {"prelude": functions})
        except UnusableSkillError as error:
            await session.close()
            raise SandboxError(str(error)) from error
        except BaseException:
            await session.close()
            raise
        return session

    async def load_error(self, function: Function, limits: SessionLimits) -> str | None:
        """Fulfils `Sandbox.load_error`. Raises SandboxError if the sandbox itself fails."""
        process = await self._process(limits)
        try:
            skill = {"skill": [function.name, function.source], "compare": True}
            await process.load(_setup({}, limits, 0, None) | skill)
        except UnusableSkillError as error:
            return str(error)
        finally:
            process.close()
        return None

    async def _process(self, limits: SessionLimits) -> ConfinedProcess:
        """Raises SandboxError, also for what the host lacks."""
        try:
            return await self._open_process(limits)
        except OSError as error:
            raise SandboxError(f"a session could not be started: {error}") from error

    async def _open_process(self, limits: SessionLimits) -> ConfinedProcess:
        fork, stream = await self._fork()
        try:
            if self._groups is not None and limits.project:
                await asyncio.to_thread(self._groups.place, limits.project, fork.pid)
            reader, writer = await asyncio.open_unix_connection(sock=stream)
        except BaseException:
            fork.close()
            stream.close()
            raise
        return ConfinedProcess(fork, reader, writer, limits)

    async def _fork(self) -> tuple[Fork, socket.socket]:
        """A new process and our end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            with theirs:
                return await self._request(theirs), ours
        except BaseException:
            ours.close()
            raise

    async def _request(self, stream: socket.socket) -> Fork:
        """Request a fork; once more if the zygote dies meanwhile."""
        for _ in range(2):
            zygote = await self._living_zygote()
            with suppress(EOFError):
                return await zygote.requests.fork(stream, self._fork_seconds)
        raise SandboxError("the sandbox's warm process dies at every fork: is the machine out of memory?")

    async def _living_zygote(self) -> Zygote:
        """The zygote; a new one if it died. A slow one is kept, because its end is the end of every session."""
        async with self._zygote_lock:
            if not self._bpf:
                raise SandboxError("the sandbox is not started")
            if self._zygote is not None and not self._is_lost(self._zygote):
                return self._zygote
            if self._zygote is not None:
                await self._zygote.end()
            self._zygote = await self._launch()
            return self._zygote

    def _is_lost(self, zygote: Zygote) -> bool:
        if zygote.alive and zygote.requests.silent_seconds() > _PATIENCE * self._fork_seconds:
            return not any(session.alive for session in self._sessions)
        return not zygote.alive

    async def _launch(self) -> Zygote:
        if not self._why_no_bwrap:
            try:
                return await launch(self._bpf, bwrap=True)
            except SandboxError as error:  # many containers deny namespaces; `describe` reports it
                if shortage_of(error) is not None:
                    raise
                self._why_no_bwrap = str(error)
        return await launch(self._bpf, bwrap=False)


def _setup(
    apis: Mapping[str, Sequence[str]], limits: SessionLimits, seed: int | None, now: datetime | None
) -> dict[str, Json]:
    """What all processes of a session have in common."""
    moment = now.replace(tzinfo=UTC) if now is not None and now.tzinfo is None else now
    return {
        "apis": {app: list(names) for app, names in apis.items()},
        "seed": seed,
        "now": None if moment is None else moment.timestamp(),
        "cpu_seconds": limits.cpu_seconds,
        "frame_bytes": limits.frame_bytes,
        "output_chars": limits.output_chars,
        "prelude": [],
        "skill": None,
        "compare": False,
    }


async def _no_call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise LookupError(f"{api} was called although no code is running: {args} {kwargs}")
