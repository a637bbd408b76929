"""Several things at once, of which none is left behind."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def together(*parts: Awaitable[T]) -> list[T]:
    """Every one has ended when this returns or raises what the first that failed raised."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
