"""A lock that keeps base and adapter generations from sharing a batch.

Unpatched vLLM on CPUs mixes them up: base requests in a batch with adapter requests get the last slot's adapter
(vllm#48421, #49656).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class GroupLock:
    """Admits any number of holders of one group at a time. First come, first served, so neither group starves."""

    def __init__(self) -> None:
        self._group = False  # of the holders
        self._holders = 0
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, group: bool) -> AsyncIterator[None]:
        """Wait until no other group holds the lock."""
        if self._waiting or (self._holders and self._group is not group):
            await self._wait(group)
        else:
            self._admit(group)
        try:
            yield
        finally:
            self._holders -= 1
            self._admit_next()

    async def _wait(self, group: bool) -> None:
        waiter = group, asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter[1].cancelled():  # admitted at the same moment
                self._holders -= 1
            self._admit_next()
            raise

    def _admit_next(self) -> None:
        """Admit the head of the queue, as long as it is of one group."""
        while self._waiting and (not self._holders or self._group is self._waiting[0][0]):
            group, entered = self._waiting.popleft()
            if not entered.cancelled():
                self._admit(group)
                entered.set_result(None)

    def _admit(self, group: bool) -> None:
        self._group = group
        self._holders += 1
