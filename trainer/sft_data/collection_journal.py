"""The journal of a collection, so that one that was interrupted resumes.

It is a file next to the output file, with a line per finished scenario.
"""

import os
from collections import Counter
from pathlib import Path

import msgspec

from app.errors import InvalidError
from app.records import Json
from trainer.atomic_write import write_atomically


class CollectionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one scenario: a line of the journal."""

    index: int
    tried: int  # tasks
    dropped: dict[str, int]
    kept: list[str]  # lines of chats


class CollectionJournal:
    """The finished scenarios, on disk. `settings` are those of the collection: others are refused."""

    def __init__(self, out: Path, settings: dict[str, Json]) -> None:
        """Raises InvalidError where `out` exists, or its journal has other settings."""
        self.entries: dict[int, CollectionEntry] = {}
        self._out = out
        self._path = out.with_name(f"{out.name}.journal")
        if out.exists():
            raise InvalidError(f"{out} exists: name another file, or remove it")
        out.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._read(settings)
        else:
            self._begin(settings)

    def add(self, entry: CollectionEntry) -> None:
        """Append an entry. It is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        self.entries[entry.index] = entry

    def close(self) -> None:
        """Remove a journal without entries, so that the next collection may have other settings."""
        if not self.entries:
            self._path.unlink(missing_ok=True)

    def finish(self) -> CollectionEntry:
        """Write the chats in the order of the scenarios, and remove the journal. Returns the sum of all
        entries.
        """
        entries = [self.entries[index] for index in sorted(self.entries)]
        kept = [line for entry in entries for line in entry.kept]
        write_atomically("".join(kept).encode(), self._out)
        self._path.unlink()
        dropped = sum((Counter(entry.dropped) for entry in entries), Counter[str]())
        return CollectionEntry(
            index=0, tried=sum(entry.tried for entry in entries), dropped=dict(dropped), kept=kept
        )

    def _begin(self, settings: dict[str, Json]) -> None:
        self._path.write_bytes(msgspec.json.encode(settings) + b"\n")

    def _read(self, settings: dict[str, Json]) -> None:
        """Read the entries. A last line that was cut short by a crash or a full disk is removed."""
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            return self._begin(settings)
        first, *lines = whole.splitlines()
        begun, given = msgspec.json.decode(first), msgspec.json.decode(msgspec.json.encode(settings))
        other = [f"{name}={begun.get(name)}" for name in given if begun.get(name) != given[name]]
        if other:
            raise InvalidError(
                f"{self._path} was begun with {', '.join(other)}: use the same, or remove it to start over"
            )
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        for line in lines:
            entry = msgspec.json.decode(line, type=CollectionEntry)
            self.entries[entry.index] = entry
