"""What a harvest has collected so far. It is never lost: called again, a harvest goes on where it was.

Beside the file that it becomes lies a journal with a line per scenario that is done.
"""

import os
from collections import Counter
from pathlib import Path

import msgspec

from app.errors import InvalidError
from app.records import Json


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What one scenario gave: a line of the journal."""

    index: int
    tried: int  # tasks
    dropped: dict[str, int]
    kept: list[str]  # lines of chats


class Journal:
    """The scenarios that are done, on disk. `plan` is what they were collected by: another plan is refused."""

    def __init__(self, out: Path, plan: dict[str, Json]) -> None:
        """Raises InvalidError where `out` is there already, or was begun by another plan."""
        self.entries: dict[int, Entry] = {}
        self._out = out
        self._path = out.with_name(f"{out.name}.journal")
        if out.exists():
            raise InvalidError(f"{out} is there already: name another file, or remove it")
        out.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._read(plan)
        else:
            self._begin(plan)

    def add(self, entry: Entry) -> None:
        """Kept once this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        self.entries[entry.index] = entry

    def leave(self) -> None:
        """A journal in which nothing is done holds no one to its plan."""
        if not self.entries:
            self._path.unlink(missing_ok=True)

    def finish(self) -> Entry:
        """Write the chats, in the order of the scenarios, and remove the journal. The sum of all entries."""
        entries = [self.entries[index] for index in sorted(self.entries)]
        kept = [line for entry in entries for line in entry.kept]
        partial = self._out.with_name(f"{self._out.name}.partial")
        partial.write_text("".join(kept), "utf-8")
        os.replace(partial, self._out)
        self._path.unlink()
        dropped = sum((Counter(entry.dropped) for entry in entries), Counter[str]())
        return Entry(index=0, tried=sum(entry.tried for entry in entries), dropped=dict(dropped), kept=kept)

    def _begin(self, plan: dict[str, Json]) -> None:
        self._path.write_bytes(msgspec.json.encode(plan) + b"\n")

    def _read(self, plan: dict[str, Json]) -> None:
        """A last line that was cut short, by a crash or a full disk, is cut off: its scenario is done again."""
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            return self._begin(plan)
        first, *lines = whole.splitlines()
        begun, plan = msgspec.json.decode(first), msgspec.json.decode(msgspec.json.encode(plan))
        other = [f"{name}={begun.get(name)}" for name in plan if begun.get(name) != plan[name]]
        if other:
            raise InvalidError(
                f"{self._path} was begun with {', '.join(other)}: go on so, or remove it to begin anew"
            )
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        for line in lines:
            entry = msgspec.json.decode(line, type=Entry)
            self.entries[entry.index] = entry
