"""How long the database has been within reach: without contact, nothing is known about other runners."""

import sys
import time
from collections.abc import Callable

_GAPS = 3  # a gap of this fraction of a lease may have let leases expire


def boot_time() -> float:
    """On Linux, this clock goes on while the machine sleeps, as the database's does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class DatabaseContact:
    """Leases that expire during an outage, or while the machine sleeps, prove nothing about their owners.

    Until contact has lasted for as long as a lease, their owners may be alive and about to renew them.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float] = boot_time) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._since = self._latest = clock()

    def confirm(self) -> None:
        """Call it whenever the database has answered; it begins anew after a gap."""
        now = self._clock()
        if now - self._latest > self._lease / _GAPS:
            self._since = now
        self._latest = now

    @property
    def is_proof(self) -> bool:
        """An owner whose lease is expired now had the time to renew it, and did not."""
        now = self._clock()
        return now - self._latest <= self._lease / _GAPS and now - self._since >= self._lease
