"""The bytes that the calls of a rollout returned, for code that is run again: records have only their hashes."""

from app.apis.binary_values import recorded_hash
from app.base.values import Json

_MAX_BYTES = 32 << 20


class KeptBytes:
    """The latest ones, up to a size in all."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._size = 0

    def add(self, recorded: Json, value: Json) -> None:
        """Keep the value that `recorded` stands for, if it is bytes."""
        digest = recorded_hash(recorded)
        if digest is None or digest in self._known:
            return
        self._known[digest] = value
        self._size += len(value)
        while self._size > _MAX_BYTES:
            self._size -= len(self._known.pop(next(iter(self._known))))

    def find(self, digest: str) -> bytes | None:
        return self._known.get(digest)
