"""A call as it goes out, with its credentials."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

Sending: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited when the connection is open, right before a request is written. If it raises, nothing is sent."""


class WireRequest(msgspec.Struct, frozen=True):
    """What a `Caller` sends. Of a protocol that is not plain HTTP, `content` are the parameters of the method."""

    method: str
    url: str
    headers: dict[str, str] = {}
    content: bytes | None = None
    clean: Callable[[str], str] = str  # removes secrets from a text that is truncated
    sending: Sending | None = None
    certificate: str | None = None  # names a file for mutual TLS
