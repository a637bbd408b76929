"""Runs awaitables concurrently and waits for all of them."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def gather_all(*parts: Awaitable[T]) -> list[T]:
    """Like asyncio.gather, but raises the first error only after all have ended."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
