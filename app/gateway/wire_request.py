"""A call as it goes out, with its credentials."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from app.apis.catalog import READING
from app.apis.documented_answers import DocumentedAnswers

Sending: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited when the connection is open, right before a request is written. If it raises, nothing is sent."""


class GoingOut:
    """A `Sending`, after which a call was `sent`: from then on it may have changed something. `before` is awaited
    first.
    """

    def __init__(self, before: Sending | None) -> None:
        self.sent = False
        self._before = before

    async def __call__(self) -> None:
        if self._before is not None:
            await self._before()
        self.sent = True


class WireRequest(msgspec.Struct, frozen=True):
    """What a `Caller` sends. Of a protocol that is not plain HTTP, `content` are the parameters of the method."""

    method: str
    url: str
    headers: dict[str, str] = {}
    content: bytes | None = None
    clean: Callable[[str], str] = str  # removes secrets from a text that is truncated
    sending: Sending | None = None
    certificate: str | None = None  # names a file for mutual TLS
    safe: bool | None = None  # whether it only reads; None: its method says so
    approved: bool = False  # a person approved its method and address
    answers: DocumentedAnswers = DocumentedAnswers()

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, so that it may be sent again, and elsewhere."""
        return self.method in READING if self.safe is None else self.safe
