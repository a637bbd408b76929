"""Answers API calls from those of a finished task, so that the task can be tried again without touching an API.

A call is answered as it was when the same changes had been made; at another moment only if no change in between
can concern it. The same call made again gets the next of its recorded results, so calls that repeat the task get
what the task got. Everything else is unknown: what the APIs would have answered, nobody can tell.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from app.base.secrets import MASK
from app.base.values import Call, Json

CallKey: TypeAlias = tuple[str, bytes]
"""An API and its arguments."""


def call_key(call: Call) -> CallKey:
    return call.api, msgspec.json.encode(call.arguments, order="deterministic")


class _Recorded(NamedTuple):
    """A call of the task, with its result or error."""

    call: Call
    before: int  # changes that the task had made


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
        self._calls: dict[CallKey, Call] = {}  # one of each
        self._changes: list[CallKey] = []  # those that the APIs did not refuse
        self._made = Counter[CallKey]()  # of these, in this trial
        self._recorded: dict[CallKey, list[_Recorded]] = {}  # in their order
        self._given: dict[CallKey, int] = {}  # which of them was the last answer
        for call in calls:
            key = call_key(call)
            self._calls[key] = call
            self._recorded.setdefault(key, []).append(_Recorded(call, len(self._changes)))
            if self._is_change(call):
                self._changes.append(key)

    def answer(self, call: Call) -> Call | None:
        """The call with its result or error; None if that is unknown."""
        key = call_key(call)
        found = self._find(call, key) if key in self._recorded else self._find_elsewhere(call, key)
        if found is None or found.result == MASK:  # as a whole it was a secret: nobody could go on with that
            return None
        if self._is_change(found):
            self._made[key] += 1
        return msgspec.structs.replace(call, result=found.result, error=found.error, response=found.response)

    @property
    def complete(self) -> bool:
        """Whether the same changes were made as in the finished task, in whatever order."""
        return not self._difference(len(self._changes))

    def _is_change(self, call: Call) -> bool:
        return call.error is None and not self._is_read(call.api)

    def _find(self, call: Call, key: CallKey) -> Call | None:
        """The next record of it in the present state, or else in one that is the same for this call."""
        recorded = self._recorded[key]
        between = [self._difference(each.before) for each in recorded]
        places = [place for place, changes in enumerate(between) if not changes] or [
            place for place, changes in enumerate(between) if not any(concerns(each, call) for each in changes)
        ]
        if not places:
            return None
        last = self._given.get(key, -1)
        self._given[key] = next((place for place in places if place > last), places[-1])
        return recorded[self._given[key]].call

    def _find_elsewhere(self, call: Call, key: CallKey) -> Call | None:
        other = self._others.get(key)
        if other is None or any(concerns(self._calls[each], call) for each in self._made):
            return None
        return other

    def _difference(self, before: int) -> list[Call]:
        """The changes that were made either here or among the first `before` of the task, but not in both."""
        recorded = Counter(self._changes[:before])
        return [self._calls[key] for key in (recorded - self._made) + (self._made - recorded)]


def concerns(change: Call, call: Call) -> bool:
    """Whether a change may alter what another call returns.

    Not if they are of different apps, or name different objects: an argument of the same name has another value.
    """
    if change.api.partition(".")[0] != call.api.partition(".")[0]:
        return False
    shared = change.arguments.keys() & call.arguments.keys()
    return not any(_names_another(change.arguments[name], call.arguments[name]) for name in shared)


def _names_another(one: Json, other: Json) -> bool:
    return isinstance(one, str | int) and isinstance(other, str | int) and str(one) != str(other)
