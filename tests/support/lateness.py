"""How late this process is that kills what computes for too long: where it is busy, that computes longer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

_PAUSE = 0.01


class Lateness:
    seconds = 0.0  # at most


@asynccontextmanager
async def lateness() -> AsyncIterator[Lateness]:
    """What was noted while this was entered."""
    found = Lateness()

    async def note() -> None:
        while True:
            before = monotonic()
            await asyncio.sleep(_PAUSE)
            found.seconds = max(found.seconds, monotonic() - before - _PAUSE)

    noting = asyncio.create_task(note())
    try:
        yield found
    finally:
        noting.cancel()
