"""Waits where a server asks for it: calls that are safe to repeat are sent again after their `Retry-After`."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from app.sandbox.protocol import RefusalError, stopped

_BUSY = (429, 503)
_MENTIONED = re.compile(r"retry[- ]after", re.IGNORECASE)
_LEAST_SECONDS = 0.2

T = TypeVar("T")


class Patience:
    """The seconds from now on in which the waits of all calls have to end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    async def send(self, once: Callable[[], Awaitable[T]], *, repeatable: bool) -> tuple[T, int]:
        """The answer and the attempts that it took. The clock of the sandbox stands still during the waits.

        Raises RefusalError, with `Retry-After` in its text.
        """
        attempts = 0
        while True:
            attempts += 1
            try:
                return await once(), attempts
            except RefusalError as error:
                seconds = self._wait(error) if repeatable else None
                if seconds is None:
                    raise self._refused(error, attempts) from error
                with stopped():
                    await asyncio.sleep(seconds)

    def _wait(self, error: RefusalError) -> float | None:
        """The seconds to wait; None if the call is not to be repeated."""
        asked = retry_after(error.response.headers) if error.status in _BUSY else None
        seconds = None if asked is None else max(asked, _LEAST_SECONDS)
        return seconds if seconds is not None and time.monotonic() + seconds <= self._end else None

    def _refused(self, error: RefusalError, attempts: int) -> RefusalError:
        asked = error.response.headers.get("retry-after")
        message = error.message
        if self._seconds and asked and error.status in _BUSY and not _MENTIONED.search(message):
            message += f" (Retry-After: {asked[:100]})"
        return RefusalError(message, msgspec.structs.replace(error.response, attempts=attempts))


def retry_after(headers: dict[str, str], now: Callable[[], float] = time.time) -> float | None:
    """The seconds until the time that the header names, at least 0; None without one.

    >>> retry_after({"retry-after": "7"}), retry_after({"retry-after": "soon"})
    (7.0, None)
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, _utc(moment).timestamp() - now())


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
