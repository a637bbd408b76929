"""Whether the kernel has ended processes for lack of memory."""

from pathlib import Path

_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/vmstat")


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
