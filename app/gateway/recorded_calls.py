"""Answers API calls from those of a finished task, so that the task can be tried again without touching an API.

A change is answered if the task made the same one, once for each time it did. A read is answered as it was when
the same changes had been made, or else if none of those made since, or not yet, can have concerned it. Everything
else is unknown: what the APIs would have answered, nobody can tell.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from app.records import Call, Json
from app.security.secret_values import MASK

CallKey: TypeAlias = tuple[str, bytes]
"""An API and its arguments."""


def call_key(call: Call) -> CallKey:
    return call.api, msgspec.json.encode(call.arguments, order="deterministic")


class RecordedCalls:
    """The calls of one finished task, for one trial."""

    def __init__(
        self,
        calls: Sequence[Call],
        is_read: Callable[[str], bool],
        others: Mapping[CallKey, Call] | None = None,
    ) -> None:
        """`is_read` says which "app.operation" changes nothing; `others` are reads of other tasks that always
        gave the same result.
        """
        self._is_read = is_read
        self._others = others or {}
        self._changes: list[Call] = []
        self._reads: dict[CallKey, list[tuple[int, Call]]] = {}  # with the number of changes before each
        self._refused: dict[CallKey, Call] = {}  # changes that the API refused
        self._made: list[Call] = []
        for call in calls:
            if is_read(call.api):
                self._reads.setdefault(call_key(call), []).append((len(self._changes), call))
            elif call.error is not None:
                self._refused[call_key(call)] = call
            else:
                self._changes.append(call)

    def answer(self, call: Call) -> Call | None:
        """The call with its result or error; None if that is unknown."""
        key = call_key(call)
        found = self._read(call, key) if self._is_read(call.api) else self._change(call, key)
        if found is None or found.result == MASK:  # as a whole it was a secret: nobody could go on with that
            return None
        return msgspec.structs.replace(call, result=found.result, error=found.error, response=found.response)

    @property
    def complete(self) -> bool:
        """Whether the same changes were made as in the finished task, in whatever order."""
        return _counted(self._made) == _counted(self._changes)

    def _change(self, call: Call, key: CallKey) -> Call | None:
        left = _counted(self._changes)[key] - _counted(self._made)[key]
        if left > 0:
            self._made.append(call)
            return next(each for each in self._changes if call_key(each) == key)
        return self._refused.get(key)

    def _read(self, call: Call, key: CallKey) -> Call | None:
        recorded = self._reads.get(key, [])
        for before, found in reversed(recorded):
            between = _difference(self._changes[:before], self._made)
            if not any(concerns(change, call) for change in between):
                return found
        other = self._others.get(key)
        if recorded or other is None or any(concerns(change, call) for change in self._made):
            return None
        return other


def concerns(change: Call, read: Call) -> bool:
    """Whether a change may alter what a read returns.

    Not if they are of different apps, or name different objects: an argument of the same name has another value.
    """
    if change.api.partition(".")[0] != read.api.partition(".")[0]:
        return False
    shared = change.arguments.keys() & read.arguments.keys()
    return not any(_names_another(change.arguments[name], read.arguments[name]) for name in shared)


def _names_another(one: Json, other: Json) -> bool:
    return isinstance(one, str | int) and isinstance(other, str | int) and str(one) != str(other)


def _difference(one: Sequence[Call], other: Sequence[Call]) -> list[Call]:
    """The calls that only one of the two has."""
    counts = _counted(one), _counted(other)
    odd = (counts[0] - counts[1]) + (counts[1] - counts[0])
    return [next(each for each in (*one, *other) if call_key(each) == key) for key in odd]


def _counted(calls: Sequence[Call]) -> Counter[CallKey]:
    return Counter(map(call_key, calls))
