"""Processes of this machine: how ours are started, named and ended together, with which priority and memory;
their ports; and what a host runs out of.
"""

import ctypes
import errno
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from app.base.errors import SettingError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if hasattr(os, "pidfd_open") else None  # of Linux; a fork can call it at once
_ALLOCATIONS = 10_000  # between two collections of new objects; Python's own 700 take a third of torch's import
_COLLECTIONS = 20  # of a generation, between two of the next

_LACKS = {
    errno.EMFILE: "open files of a process: raise its limit (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "open files of the whole system: raise fs.file-max",
    errno.ENOMEM: "memory: add some, or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.EAGAIN: "processes: raise their limit (pids.max, ulimit -u), or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "disk space: a quota is used up",
}
_NO_THREAD = "can't start new thread"  # a RuntimeError of CPython for EAGAIN


def python_module(name: str, *arguments: str, python: str = sys.executable) -> tuple[str, ...]:
    """The command that runs a module in a new interpreter. No file of the working directory, which anybody may
    have written, stands in for a module (`-P`).
    """
    return (python, "-P", "-m", name, *arguments)


def lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Limit this process, and those that it will start; a lower limit stays. Without `hard`, both are `soft`."""
    wanted = soft, soft if hard is None else hard
    limits = zip(wanted, resource.getrlimit(kind), strict=True)
    soft, hard = (new if old == resource.RLIM_INFINITY else min(new, old) for new, old in limits)
    resource.setrlimit(kind, (soft, hard))


def new_owner() -> str:
    """A unique name for this process, which its claims have; people recognize host and pid."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


def pid_space() -> str:
    """Where a pid of this process is valid: this boot of this machine, and its PID namespace. "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """No process has this pid, or only a zombie. False where that cannot be known, or if the pid was reused."""
    try:
        os.kill(pid, 0)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's, whose entry may be hidden, or has ended in between
        return False
    return fields[0] in "ZX"


def end_with_parent() -> None:
    """Have Linux kill this process when its parent dies; also as the `preexec_fn` of a child.

    On other systems nothing happens: the process must poll its parent.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_with_parent(parent: int) -> None:
    """As `end_with_parent`, and exit if the parent has ended already."""
    end_with_parent()
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


def lower_priority(niceness: int) -> None:
    """Of this process and its children. Where the kernel groups processes by session, it is the group's priority
    that counts.
    """
    os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


def collect_seldom() -> None:
    """Call it before large imports."""
    gc.set_threshold(_ALLOCATIONS, _COLLECTIONS, _COLLECTIONS)


def freeze_memory() -> None:
    """Spare later garbage collections what is loaded at the start: to go through it holds up all for 0.1 s."""
    gc.collect()
    gc.freeze()


class Port(msgspec.Struct, frozen=True):
    """A port to listen on, and the setting it comes from."""

    host: str
    number: int
    setting: str


def check_ports(ports: Iterable[Port]) -> None:
    """Raises SettingError, naming the setting, if a port is in use or two of them are the same."""
    seen: dict[int, str] = {}
    for port in ports:
        if port.number in seen:
            raise SettingError(f"{seen[port.number]} and {port.setting} are both {port.number}: change one")
        seen[port.number] = port.setting
        check_port(port.host, port.number, port.setting)


def check_port(host: str, port: int, setting: str) -> None:
    """Raises SettingError, naming the setting, if the port cannot be listened on."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise SettingError(
            f"{host} is not an address of this machine ({error.strerror}): set SAGE_HOST"
        ) from error
    except OSError as error:
        raise SettingError(f"port {port} on {host} cannot be used ({error.strerror}): set {setting}") from error


def base_url(host: str, port: int) -> str:
    """The URL of a local server that listens on `host`."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def shortage_of(error: BaseException) -> str | None:
    """What the host lacks, and what to do, if that is what the error, or one that led to it, says. Else None."""
    for each, is_cause in _causes(error):
        number = _errno(each)
        if number in _LACKS and (is_cause or number != errno.EAGAIN):  # which a socket without news raises, too
            return f"the host has run out of {_LACKS[number]}"
    return None


def _causes(error: BaseException | None, is_cause: bool = True) -> Iterator[tuple[BaseException, bool]]:
    """Errors that led to this one, and whether as its cause: httpcore hides that by `from None`."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error, is_cause
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each, is_cause)
        is_cause = is_cause and error.__cause__ is not None
        error = error.__cause__ or error.__context__


def _errno(error: BaseException) -> int | None:
    if isinstance(error, socket.gaierror):
        return _hidden_errno()
    if isinstance(error, OSError):
        return error.errno
    return errno.EAGAIN if isinstance(error, RuntimeError) and str(error) == _NO_THREAD else None


def _hidden_errno() -> int | None:
    """A look-up of a name does not tell that it could not open its files."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno
    return None
