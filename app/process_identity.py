"""Names processes so that others on the same machine can tell whether one is gone."""

import os
import socket
from pathlib import Path
from uuid import uuid4


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
