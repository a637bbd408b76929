"""The terms of a project's APIs, which a skill may contain: they belong to no single task. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

import msgspec

from app.apis.catalog import Catalog, Operation
from app.base.values import Json, Trajectory

_BOUNDS = (
    "default",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "maxItems",
    "maxLength",
)
_KEYS = {"id", "_id", "uuid", "key", "slug"}
_MAX_VALUES = 100_000  # of the answers of a rollout
_TERMS: WeakKeyDictionary[Operation, frozenset[str]] = WeakKeyDictionary()


def api_terms(catalog: Catalog) -> frozenset[str]:
    """Lower-case names of apps, operations, arguments and fields, and the values that their schemas spell out."""
    apps = catalog.apps.values()
    operations = (operation for app in apps for operation in app.operations.values())
    return frozenset(app.name.lower() for app in apps).union(*map(_of_operation, operations))


def shown_fields(trajectory: Trajectory) -> frozenset[str]:
    """Lower-case names of fields in the answers of a rollout, which a document that leaves open what records have
    does not tell: those of several different objects of one answer, or of one with a key. Names of a map, whose
    values are objects alike, are no fields, and one that is read again shows nothing new. Reads at most 100,000
    values.
    """
    shown, left = set[str](), _MAX_VALUES
    for call in (call for turn in trajectory.turns for call in turn.calls):
        counted, seen, waiting = Counter[str](), set[bytes](), [call.result]
        while waiting and left:
            left -= 1
            value = waiting.pop()
            if isinstance(value, dict):
                waiting += value.values()
                if not _is_map(value) and (content := msgspec.json.encode(value, order="sorted")) not in seen:
                    seen.add(content)
                    times = 2 if _KEYS & value.keys() else 1
                    counted.update({name.lower(): times for name in value if name.isidentifier()})
            elif isinstance(value, list):
                waiting += value
        shown.update(name for name, times in counted.items() if times > 1)
    return frozenset(shown)


def _is_map(value: Mapping[str, Json]) -> bool:
    """Whether all values are objects with the same names."""
    first, *others = (each.keys() if isinstance(each, dict) else None for each in value.values() or [None])
    return first is not None and all(each == first for each in others)


def _of_operation(operation: Operation) -> frozenset[str]:
    """Cached: all drafts of a rollout are checked against the same hundred operations."""
    words = _TERMS.get(operation)
    if words is None:
        words = _TERMS[operation] = frozenset(word.lower() for word in _words(operation))
    return words


def _words(operation: Operation) -> Iterator[str]:
    yield operation.name
    yield from _of_schema(operation.returns)
    for parameter in operation.parameters:
        yield from (parameter.name, parameter.wire_name)
        yield from _of_schema(parameter.schema)


def _of_schema(schema: Json) -> Iterator[str]:
    """Accept anything in place of a schema: documents are not ours."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            yield from _spelled_out(key, value)
            yield from _of_schema(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _of_schema(each)


def _spelled_out(key: str, value: Json) -> Iterator[str]:
    if key == "properties" and isinstance(value, Mapping):
        yield from value
    elif key == "enum" and isinstance(value, list):
        yield from (str(each) for each in value)
    elif key in _BOUNDS:
        yield str(value)
