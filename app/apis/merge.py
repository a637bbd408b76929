"""Merges `allOf` into one schema, whose fields can be shown and passed as arguments."""

from collections.abc import Callable
from typing import Final

from app.base.values import Json

_ABOUT: Final = {"description", "title", "default", "deprecated", "readOnly", "writeOnly"}
_FREE: Final = _ABOUT | {"properties", "required", "additionalProperties"}
_Spend = Callable[[int], None]


class Merges:
    """The merges of one document. `spend` is called with the number of members to be compared or copied.

    Two fields that share a name are merged once: schemas share parts, and their merges would unfold without bound.
    """

    def __init__(self, spend: _Spend) -> None:
        self.spend = spend
        self._fields: dict[tuple[int, int], tuple[dict[str, Json], dict[str, Json], dict[str, Json]]] = {}

    def field(self, one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
        key = (id(one), id(other))
        if key not in self._fields:  # kept with its parts, so that no other part gets the identity of one
            self._fields[key] = (one, other, merged({"allOf": [one, other]}, self))
        return self._fields[key][2]


def merged(schema: dict[str, Json], merges: Merges | None = None) -> dict[str, Json]:
    """The schema with its allOf merged in; members that cannot be merged stay in allOf, to be validated.

    >>> merged({"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["a"], "minProperties": 2}]})
    {'type': 'object', 'properties': {'a': {}}, 'required': ['a'], 'minProperties': 2}
    """
    members = schema.get("allOf")
    if not members:
        return schema
    own = {word: value for word, value in schema.items() if word != "allOf"}
    union = _Union(merges or Merges(lambda _: None))
    for member in [*members, own]:
        union.add(member)
    return union.schema(closed=len(members) == 1 and "properties" not in own)


class _Union:
    """The merged schema so far, and the members that do not fit it."""

    def __init__(self, merges: Merges) -> None:
        self._merges = merges
        self._spend = merges.spend
        self._result: dict[str, Json] = {}
        self._fields: dict[str, Json] = {}
        self._required: dict[str, None] = {}
        self._left: list[dict[str, Json]] = []

    def add(self, member: dict[str, Json]) -> None:
        self._spend(1 + len(member))
        if self._fits(member):
            self._take(member)
        else:
            self._take({word: member[word] for word in ("properties", "required") if word in member})
            self._left.append(
                {word: value for word, value in member.items() if word not in ("properties", "required")}
            )

    def schema(self, *, closed: bool) -> dict[str, Json]:
        result, left = self._result, self._left
        if "required" in result:
            result["required"] = list(self._required)
        if not closed:  # each member forbids the fields of the others
            result.pop("additionalProperties", None)
            left = [
                {word: value for word, value in each.items() if word != "additionalProperties"} for each in left
            ]
        return {**result, "allOf": [each for each in left if each]} if any(left) else result

    def _fits(self, member: dict[str, Json]) -> bool:
        shared = self._result.keys() & member.keys() - _FREE
        return all(self._same(self._result[word], member[word]) for word in shared)

    def _same(self, one: Json, other: Json) -> bool:
        """Equality, whose steps are counted: resolved schemas share parts, and unfold when compared."""
        if one is other:
            return True
        self._spend(1)
        if isinstance(one, dict) and isinstance(other, dict):
            return len(one) == len(other) and all(
                key in other and self._same(value, other[key]) for key, value in one.items()
            )
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(self._same, one, other))
        return bool(one == other)

    def _take(self, member: dict[str, Json]) -> None:
        for word, value in member.items():
            if word == "properties":
                self._result[word] = self._fields
                self._spend(3 * len(value))
                for name, field in value.items():
                    known = self._fields.get(name)
                    self._fields[name] = field if known is None else self._merges.field(known, field)
            elif word == "required":
                self._result[word] = value
                self._spend(len(value))
                self._required.update(dict.fromkeys(value))
            else:
                self._result[word] = value
