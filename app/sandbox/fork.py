"""One forked process as the host sees it: what it spends, and how it is ended. Its own word counts for nothing."""

import os
import re
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

_CPUCLOCK_SCHED = 2


class Fork:
    """Holds a pidfd, so that a kill can never hit another process that got the same number."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._pid = _pid_of(pidfd)
        self._cpu_seconds = 0.0
        self._closed = False

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, user and system; of a dead one, as of the last look."""
        clock = (~self._pid << 3) | _CPUCLOCK_SCHED  # what clock_getcpuclockid(3) computes
        with suppress(OSError):
            self._cpu_seconds = time.clock_gettime(clock)
        return self._cpu_seconds

    def address_space(self) -> int:
        """Bytes of address space it holds now."""
        pages = Path(f"/proc/{self._pid}/statm").read_text().split()[0]
        return int(pages) * resource.getpagesize()

    def kill(self) -> None:
        if not self._closed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and let go."""
        self.kill()
        if not self._closed:
            self._closed = True
            os.close(self._pidfd)


def _pid_of(pidfd: int) -> int:
    """In our own process namespace, whichever the process itself lives in."""
    said = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    found = re.search(r"^Pid:\s*(\d+)$", said, re.MULTILINE)
    if found is None:
        raise ProcessLookupError("the fork died at once")
    return int(found[1])
