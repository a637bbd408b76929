"""Token buckets, which bound a rate and allow bursts. They count in this process only."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class TokenBuckets(Generic[K]):
    """A bucket for each key, which holds the tokens of one minute. The least recently used ones are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = 10_000) -> None:
        self._clock = clock
        self._size = size
        self._buckets: OrderedDict[K, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def wait(self, key: K, per_minute: int) -> float:
        """The seconds until the bucket has a token; 0 if it has one."""
        tokens, _ = self._filled(key, per_minute)
        return max(0.0, (1 - tokens) * 60 / per_minute)

    def take(self, key: K, per_minute: int) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        seconds = self.wait(key, per_minute)
        if seconds == 0:
            self.charge(key, per_minute)
        return seconds

    def charge(self, key: K, per_minute: int) -> None:
        """Take a token even if there is none, which lengthens the wait by up to a minute."""
        tokens, now = self._filled(key, per_minute)
        self._buckets[key] = max(tokens - 1, -float(per_minute)), now
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._size:
            self._buckets.popitem(last=False)

    def _filled(self, key: K, per_minute: int) -> tuple[float, float]:
        now = self._clock()
        tokens, since = self._buckets.get(key, (float(per_minute), now))
        return min(float(per_minute), tokens + (now - since) * per_minute / 60), now
