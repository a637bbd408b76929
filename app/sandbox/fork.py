"""A forked process, measured and killed from the host: nothing it reports is trusted."""

import os
import re
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

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
