"""Calls on record: so that none is sent twice after a crash, and a task can be tried again without touching an
API.

A call is answered as it was when the same changes had been made; at another moment only if no change in between
can concern it. The same call made again gets the next of its recorded results, so calls that repeat the task
get what the task got. Everything else is unknown. Answers can be shown as a newer document would have them; of
bytes records have only the hash, so those that the calls of a rollout returned are kept for code that is run
again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from app.apis.values import TYPES, recorded_hash
from app.base.secrets import MASK
from app.base.values import Call, Json

_MAX_BYTES = 32 << 20

CallKey: TypeAlias = tuple[str, bytes]
"""An API and its arguments."""


class InDoubtError(Exception):
    """A call went out, its result was lost, and repeating it is not safe.

    The message is the sandbox's; `known` is for people. `cause` is what happened before the result was recorded.
    """

    def __init__(self, api: str, arguments: dict[str, Json], cause: str) -> None:
        super().__init__(f"{api} was called, its result was lost, and it may not be repeated")
        self.api = api
        self.arguments = arguments
        self.known = (
            f"{api} was sent, and {cause} before its answer was recorded: whether the call arrived is not known, "
            "and it may not be repeated"
        )


class CallJournal(Protocol):
    """Notified of every call before it is prepared and after it returned. Calls are identified by their `seq`."""

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        """The recorded call, to be used instead of sending it; None to send it. Raises InDoubtError."""

    async def sending(self) -> None:
        """Record the call that began, if it must not be repeated: its connection is open, and the request goes out
        right after. Raises if it must not.
        """

    async def end(self, call: Call) -> None:
        """Record the call's result or error."""

    async def abort(self) -> None:
        """The call that began will have no result. Undo its record if it was not sent."""


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


def call_key(call: Call) -> CallKey:
    return call.api, msgspec.json.encode(call.arguments, order="deterministic")


class _Recorded(NamedTuple):
    """A call of the task, with its result or error."""

    call: Call
    before: int  # changes that the task had made


class RecordedCalls:
    """The calls of one finished task, for one trial."""

    def __init__(
        self, calls: Sequence[Call], is_read: Callable[[str], bool], others: Mapping[CallKey, Call] | None = None
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


def projected(value: Json, old: Json, new: Json) -> Json:
    """The value without the fields that only the old schema has, or that are of another type in the new one; None
    if that is true of all of it. What neither schema describes stays.

    >>> old = {"properties": {"id": {"type": "integer"}, "name": {}}}
    >>> projected({"id": 1, "name": "a", "x": 2}, old, {"properties": {"id": {"type": "string"}, "title": {}}})
    {'x': 2}
    """
    if not _accepts(new, value):
        return None
    if isinstance(value, list):
        return [projected(each, _items(old), _items(new)) for each in value]
    there = dict(_properties(new))
    if not isinstance(value, dict) or not there:
        return value
    before = dict(_properties(old))
    kept = {name: each for name, each in value.items() if name in there or name not in before}
    return {
        name: projected(each, before.get(name), there.get(name))
        for name, each in kept.items()
        if _accepts(there.get(name), each)
    }


def _accepts(schema: Json, value: Json) -> bool:
    """Whether the schema has the type of the value; one that says nothing has every type."""
    if not isinstance(schema, Mapping):
        return schema is not False
    named = schema.get("type", [])
    names = [named] if isinstance(named, str) else named
    kinds = [kind for each in names for kind in TYPES.get(each, (object,))]
    is_flag = isinstance(value, bool)  # which is no number
    if kinds and not any(isinstance(value, kind) and (not is_flag or kind in (bool, object)) for kind in kinds):
        return bool(schema.get("nullable")) and value is None
    choices = [schema[word] for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)]
    return all(any(_accepts(each, value) for each in branches) for branches in choices)


def _properties(schema: Json) -> Iterator[tuple[str, Json]]:
    """Those of all branches."""
    if isinstance(schema, Mapping):
        found = schema.get("properties")
        yield from found.items() if isinstance(found, Mapping) else ()
        for word in ("allOf", "anyOf", "oneOf"):
            for branch in schema.get(word) or ():
                yield from _properties(branch)


def _items(schema: Json) -> Json:
    return schema.get("items") if isinstance(schema, Mapping) else None
