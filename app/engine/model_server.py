"""A model server as people see it."""

from typing import Self
from urllib.parse import urlsplit

import msgspec

from app.engine.replica import Replica, ReplicaState
from app.records import BASE


class ModelServer(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` is why it is out. `adapters` are those it has loaded, by hash."""

    url: str  # without a password
    state: ReplicaState
    cause: str
    in_flight: int  # generations of this process
    max_in_flight: int
    adapters: tuple[str, ...]
    most_adapters: int | None
    version: str

    @classmethod
    def of(cls, replica: Replica) -> Self:
        known = replica.capabilities
        return cls(
            url=_without_user(replica.url),
            state=replica.state,
            cause="" if replica.alive or replica.cause is None else str(replica.cause),
            in_flight=replica.in_flight,
            max_in_flight=replica.max_in_flight,
            adapters=tuple(sorted(replica.names - {BASE})),
            most_adapters=known.max_loras if known else None,
            version=known.version if known else "",
        )


def _without_user(url: str) -> str:
    """
    >>> _without_user("http://me:secret@gpu:8000/v1"), _without_user("http://gpu:8000")
    ('http://gpu:8000/v1', 'http://gpu:8000')
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
