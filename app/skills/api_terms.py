"""The terms of a project's APIs, which a skill may contain: they belong to no single task. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

from app.apis.catalog import Catalog, Operation
from app.records import Json, Trajectory

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
    does not tell: of several objects, or of one with a key. Reads at most 100,000 values.
    """
    counted = Counter[str]()
    waiting = [call.result for turn in trajectory.turns for call in turn.calls]
    for _ in range(_MAX_VALUES):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, dict):
            times = 2 if _KEYS & value.keys() else 1
            counted.update({name.lower(): times for name in value if name.isidentifier()})
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return frozenset(name for name, times in counted.items() if times > 1)


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
