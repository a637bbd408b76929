"""The host's end of the warm process: the system calls that sandboxed code may make, as a BPF program; its launch
with an empty environment, in bubblewrap where that works; numbered requests for forks; and a fork, measured and
killed from the host: nothing it reports is trusted.
"""

import asyncio
import errno
import importlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from app.base.errors import SandboxError
from app.sandbox.child.confine import SESSION_FD

_PROT_EXEC = 4

_ALLOWED = """
brk clock_getres clock_gettime clock_nanosleep close exit exit_group futex getegid geteuid getgid getitimer
getpid getppid getrandom getrusage gettid gettimeofday getuid madvise mremap munmap nanosleep restart_syscall
rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn sched_yield setitimer time times uname
"""

_ONE_FD = ("read", "write")  # on the session's socket only

_NOT_EXECUTABLE = ("mmap", "mprotect")  # both take the protection as their third argument

_NO_FILES = """
access chdir chmod chown chroot creat execve execveat faccessat faccessat2 fchmodat fchownat getcwd lchown link
linkat lstat mkdir mkdirat mknod mknodat mount newfstatat open open_tree openat openat2 pivot_root readlink
readlinkat rename renameat renameat2 rmdir stat statfs statx symlink symlinkat truncate umount2 unlink unlinkat
utimensat
"""


def build() -> bytes:
    """The filter for this machine's architecture. System calls of other ones, x32 included, kill the process."""
    seccomp = _libseccomp()
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    for name in _ALLOWED.split():
        rules.add_rule(seccomp.ALLOW, name)
    for name in _ONE_FD:
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, SESSION_FD))
    for name in _NOT_EXECUTABLE:
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(2, seccomp.MASKED_EQ, _PROT_EXEC, 0))
    for name in _NO_FILES.split():
        rules.add_rule(seccomp.ERRNO(errno.EACCES), name)  # so that open() raises PermissionError
    return _export(rules)


def _libseccomp() -> Any:
    try:
        return importlib.import_module("pyseccomp")  # loads libseccomp when imported
    except (ImportError, RuntimeError) as error:
        raise SandboxError(
            "the sandbox needs Linux with libseccomp: install the package libseccomp2 (Debian, Ubuntu) or "
            "libseccomp (Fedora, Alpine), or run the server in its container"
        ) from error


def _export(rules: Any) -> bytes:
    with open(os.memfd_create("filter"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


_CPUCLOCK_SCHED = 2


class Fork:
    """Identified by a pidfd, so that a kill can never hit another process that reuses the pid."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self.pid = _pid_of(pidfd)
        self._cpu_seconds = 0.0
        self._closed = False

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, user and system; of a dead process, as of the last call."""
        clock = (~self.pid << 3) | _CPUCLOCK_SCHED  # as clock_getcpuclockid(3) computes it
        if not self._closed:  # then its number may belong to another process
            with suppress(OSError):
                self._cpu_seconds = time.clock_gettime(clock)
        return self._cpu_seconds

    def address_space(self) -> int:
        """Address space in bytes."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[0]
        return int(pages) * resource.getpagesize()

    def stop(self) -> None:
        """Stop the process until `resume`. It cannot catch or ignore this."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and release the pidfd."""
        self.cpu_seconds()
        self.kill()
        if not self._closed:
            self._closed = True
            os.close(self._pidfd)

    def _signal(self, number: signal.Signals) -> None:
        if not self._closed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


def _pid_of(pidfd: int) -> int:
    """The pid in our own process namespace, regardless of the process's own."""
    fdinfo = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    match = re.search(r"^Pid:\s*(\d+)$", fdinfo, re.MULTILINE)
    if match is None:
        raise ProcessLookupError("the fork died at once")
    return int(match[1])


_ADVICE = {
    errno.EAGAIN: "raise the limit of processes (pids.max, ulimit -u), or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.ENOMEM: "add memory, or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class ForkRequests:
    """The host's end of the control socket. Any number of requests may wait at the same time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Fork]] = {}
        self._owed = 0  # answers, also of requests that no longer wait
        self._unheard = 0.0  # since when, if any is owed
        self.open = True  # the other end lives, as far as is known
        asyncio.get_running_loop().add_reader(control, self._receive)

    def silent_seconds(self) -> float:
        """Seconds since the warm process last answered, if it owes an answer."""
        return time.monotonic() - self._unheard if self._owed else 0.0

    async def fork(self, stream: socket.socket, seconds: float) -> Fork:
        """A new process with this socket. Raises SandboxError if this request fails, EOFError if all do."""
        number = next(self._numbers)
        self._send(number, stream)
        future: asyncio.Future[Fork] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await asyncio.wait([future], timeout=seconds)
        except asyncio.CancelledError:
            _abandon(future)
            raise
        finally:
            del self._waiting[number]
        if not future.done():
            raise SandboxError(
                f"a session did not start within {seconds:g} s: the machine is overloaded. "
                "Add CPU cores, or lower SAGE_MAX_TASKS_IN_FLIGHT"
            )
        return future.result()

    def close(self) -> None:
        """Close the socket. Requests that wait raise EOFError."""
        if self.open:
            self.open = False
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError("the warm process is gone"))

    def _send(self, number: int, stream: socket.socket) -> None:
        if not self.open:
            raise EOFError("the warm process is gone")
        try:
            socket.send_fds(self._control, [str(number).encode()], [stream.fileno()])
        except BlockingIOError as error:
            raise SandboxError("too many sessions wait to be started: the machine is overloaded") from error
        except OSError as error:
            self.close()
            raise EOFError("the warm process is gone") from error
        self._unheard = self._unheard if self._owed else time.monotonic()
        self._owed += 1

    def _receive(self) -> None:
        try:
            message, fds, _flags, _address = socket.recv_fds(self._control, 1 << 12, 1)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message:
            return self.close()
        self._owed -= 1
        self._unheard = time.monotonic()
        number, _, failure = message.decode().partition(" ")
        self._settle(self._waiting.get(int(number)), fds, failure)

    def _settle(self, future: asyncio.Future[Fork] | None, fds: list[int], failure: str) -> None:
        """Hand a new process to the request that waits for it; kill the process of one that does not any more."""
        try:
            fork = _opened(fds, failure)
        except SandboxError as error:
            if future is not None and not future.done():
                future.set_exception(error)
            return
        if future is None or future.done():
            fork.close()
        else:
            future.set_result(fork)


def _abandon(future: asyncio.Future[Fork]) -> None:
    """Kill the process that came for a request as it was cancelled."""
    if future.done() and future.exception() is None:
        future.result().close()


def _opened(fds: list[int], failure: str) -> Fork:
    if not fds:
        code = int(failure or errno.EMFILE)  # without a failure, this process could not take the descriptor
        advice = _ADVICE.get(code, "see the system's log")
        cause = OSError(code, os.strerror(code))  # in the warm process
        raise SandboxError(f"a session could not be started: {cause.strerror} ({advice})") from cause
    try:
        return Fork(fds[0])
    except OSError as error:
        os.close(fds[0])
        raise SandboxError(f"a session could not be started: {error}") from error


_START_SECONDS = 30.0
_PACKAGE = Path(__file__).parents[1]  # the directory of `app`
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from app.sandbox.zygote import main; main()"


class Zygote(NamedTuple):
    """A warm process, and what requests forks from it."""

    process: Process
    requests: ForkRequests
    python: str
    uid: int

    @property
    def alive(self) -> bool:
        return self.requests.open and self.process.returncode is None

    async def end(self) -> None:
        """Kill it, and with it every session."""
        self.requests.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


async def launch(bpf: bytes, *, bwrap: bool) -> Zygote:
    """Start a zygote. Raises SandboxError with the process's last output if it does not start."""
    command = [*(_bwrap() if bwrap else []), *_python()]
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise SandboxError(f"cannot start {command[0]}: {error}") from error
    ours.setblocking(False)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=DEVNULL,
                stderr=PIPE,
                env={"PYTHONHASHSEED": "0"},  # -I would ignore it
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the server, which ends its sessions itself
            )
        return await _handshake(process, ours, bpf)
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            raise SandboxError(f"cannot start {command[0]}: {error}") from error
        raise


def find_bwrap() -> str | None:
    return shutil.which("bwrap")


async def _handshake(process: Process, control: socket.socket, bpf: bytes) -> Zygote:
    loop = asyncio.get_running_loop()
    hello = b""
    try:
        with suppress(OSError):  # it has ended, or takes too long
            async with asyncio.timeout(_START_SECONDS):
                await loop.sock_sendall(control, bpf)
                hello = await loop.sock_recv(control, 1 << 12)
    finally:
        if not hello:
            with suppress(ProcessLookupError):
                process.kill()
    if not hello:
        _, stderr = await process.communicate()
        lines = stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise SandboxError(f"the sandbox did not start: {lines[-1]}")
    return Zygote(process, ForkRequests(control), **json.loads(hello))


def _python() -> list[str]:
    interpreter = str(Path(sys.executable).resolve())  # without the virtual environment and its packages
    return [interpreter, "-s", "-S", "-P", "-B", "-c", _BOOT, str(_PACKAGE.parent)]


def _bwrap() -> list[str]:
    paths = {"/usr", "/lib", "/lib64", sys.base_prefix, str(_PACKAGE)}
    binds = [word for path in sorted(paths) for word in ("--ro-bind-try", path, path)]
    return [
        find_bwrap() or "bwrap",
        "--unshare-all",
        *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session"),
        *binds,
        *("--chdir", "/"),
    ]
