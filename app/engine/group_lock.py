"""Keeps base and adapter generations apart, for servers that mix them up where they share a batch.

So does vLLM on CPUs without a fix: base requests in a batch with adapter requests get the last slot's adapter
(vllm#48421, #49656).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Apart:
    """Any number of one sort at once, never both. First come, first served, so neither sort waits for ever."""

    def __init__(self) -> None:
        self._sort = False  # of those inside
        self._inside = 0
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def among(self, sort: bool) -> AsyncIterator[None]:
        """Entered once nobody of the other sort is inside."""
        if self._waiting or (self._inside and self._sort is not sort):
            await self._wait(sort)
        else:
            self._admit(sort)
        try:
            yield
        finally:
            self._inside -= 1
            self._let_in()

    async def _wait(self, sort: bool) -> None:
        ticket = sort, asyncio.get_running_loop().create_future()
        self._waiting.append(ticket)
        try:
            await ticket[1]
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            elif not ticket[1].cancelled():  # let in at the same moment
                self._inside -= 1
            self._let_in()
            raise

    def _let_in(self) -> None:
        """Those at the head of the line, as long as they are of one sort."""
        while self._waiting and (not self._inside or self._sort is self._waiting[0][0]):
            sort, entered = self._waiting.popleft()
            if not entered.cancelled():
                self._admit(sort)
                entered.set_result(None)

    def _admit(self, sort: bool) -> None:
        self._sort = sort
        self._inside += 1
