"""How much host memory this process may still use."""

import resource
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def memory_available() -> int | None:
    """Bytes that this process may still use: of the host, of its cgroup, of its own limit. None if unknown."""
    limits = [_of_host(), _of_cgroup(), _of_process()]
    return min((limit for limit in limits if limit is not None), default=None)


def _of_host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:  # not Linux
        return None
    kilobytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kilobytes[0]) << 10 if kilobytes else None


def _of_cgroup() -> int | None:
    """What a container's limit leaves; files that the kernel can drop again count as free."""
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        used = int((_CGROUP / "memory.current").read_text("ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):  # no limit of this version
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))


def _of_process() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
