"""Limits that all sessions of a project share: memory and processes, by control groups (cgroup v2).

A session is moved into its project's group right after its fork, before any untrusted code runs. The groups belong
to the machine: all runners on it use the same.
"""

import errno
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from app.base.errors import SandboxError

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CONTROLLERS = {"memory", "pids"}
_OWN = "sage-server"  # for this server's own processes
_TRIES = 5
_PREFIX = "sage-project-"
_BYTES_OF_PROCESS = 8 << 20
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}")


class SharedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of all sessions of a project together, on one machine."""

    memory_bytes: int

    @property
    def pids(self) -> int:
        """Processes.

        >>> SharedLimits(memory_bytes=4 << 30).pids
        512
        """
        return max(1, self.memory_bytes // _BYTES_OF_PROCESS)


class UnusableCgroupError(Exception):
    """This process may not limit groups of processes. The message says why."""


class ControlGroups:
    """The groups of the projects under `base`, a control group that this process may write to."""

    def __init__(self, base: Path, limits: SharedLimits) -> None:
        self._base = base
        self._limits = limits
        self._limited: set[Path] = set()

    @classmethod
    def find(
        cls, limits: SharedLimits, *, mount: Path = _MOUNT, membership: Path = _MEMBERSHIP
    ) -> "ControlGroups":
        """The groups under this process's own one. Raises UnusableCgroupError."""
        base = _own_group(mount, membership)
        if base.name == _OWN:
            base = base.parent
        try:
            _enable(base, is_root=base == mount)
        except OSError as error:
            raise UnusableCgroupError(f"{base} is not writable: {os.strerror(error.errno or 0)}") from error
        return cls(base, limits)

    def place(self, group: str, pid: int) -> None:
        """Move a process into the group. Raises SandboxError if the group is full, or the process cannot move."""
        directory = self._base / f"{_PREFIX}{_file_name(group)}"
        try:
            self._prepare(directory)
            if _processes(directory) >= self._limits.pids:  # the kernel lets processes move into a full group
                raise SandboxError(
                    f"the sessions of the project {group} have {self._limits.pids} processes, as many as allowed: "
                    "raise SAGE_SANDBOX_PROJECT_MEMORY_MB, or let it run fewer tasks at once"
                )
            (directory / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise SandboxError(f"a session cannot be moved into {directory}: {error.strerror}") from error

    def remove(self) -> None:
        """Remove the groups that no process is in."""
        for directory in self._base.glob(f"{_PREFIX}*"):
            with suppress(OSError):
                directory.rmdir()

    def _prepare(self, directory: Path) -> None:
        try:
            directory.mkdir()
        except FileExistsError:  # of another runner, or with the limits of an earlier server
            if directory in self._limited:
                return
        (directory / "memory.max").write_text(str(self._limits.memory_bytes))
        (directory / "pids.max").write_text(str(self._limits.pids))
        with suppress(FileNotFoundError):  # of a kernel without swap accounting
            (directory / "memory.swap.max").write_text("0")
        self._limited.add(directory)


def _processes(group: Path) -> int:
    return len(_members(group)) if (group / "cgroup.procs").exists() else 0


def _members(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


def _own_group(mount: Path, membership: Path) -> Path:
    if not (mount / "cgroup.controllers").exists():
        raise UnusableCgroupError(f"cgroup v2 is not mounted at {mount}")
    own = [line.removeprefix("0::") for line in membership.read_text().splitlines() if line.startswith("0::")]
    base = mount / (own[0] if own else "").lstrip("/")
    if not (base / "cgroup.procs").exists():
        raise UnusableCgroupError(f"{base} is not visible")
    return base


def _enable(base: Path, *, is_root: bool) -> None:
    """Have the group's children limit memory and processes."""
    missing = _CONTROLLERS - set((base / "cgroup.controllers").read_text().split())
    if missing:
        raise UnusableCgroupError(f"{base} has no controller {' and '.join(sorted(missing))}")
    if set((base / "cgroup.subtree_control").read_text().split()) >= _CONTROLLERS:
        return
    if not is_root and not _is_delegated(base):  # others, such as systemd, manage it
        raise UnusableCgroupError(f"{base} is not delegated to this server (systemd: Delegate=yes)")
    _enable_empty(base)


def _enable_empty(base: Path) -> None:
    """Move the group's own processes aside: one with limited children may hold none."""
    own = base / _OWN
    own.mkdir(exist_ok=True)
    for left in reversed(range(_TRIES)):
        for pid in _members(base):
            _move(pid, own)
        try:
            (base / "cgroup.subtree_control").write_text("+memory +pids")
        except OSError as error:
            if error.errno != errno.EBUSY or not left:  # a process has been started meanwhile
                raise
        else:
            return


def _move(pid: str, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(pid)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EINVAL):  # it has ended, or is a thread of the kernel
            raise


def _is_delegated(base: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            return os.getxattr(base, name) == b"1"
    return False


def _file_name(group: str) -> str:
    return group if _PLAIN.fullmatch(group) else hashlib.sha256(group.encode()).hexdigest()[:32]
