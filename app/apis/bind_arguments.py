"""Binds the arguments of a call and validates them against the document. Nothing is coerced."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from app.apis.binary_values import holds_bytes, takes_bytes
from app.apis.catalog import Operation, Parameter
from app.apis.names import nearest
from app.apis.schema_validator import Check, TooComplexError, start_counting
from app.apis.signature import call_form
from app.base.errors import HostError
from app.base.values import Json

_MESSAGE_CHARS = 300
_validators: WeakKeyDictionary[Operation, dict[str, Check]] = WeakKeyDictionary()


def bind(operation: Operation, args: list[Json], kwargs: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments by name, each valid for its schema. Raises HostError, a TypeError or a ValidationError.

    None for an optional argument leaves it out, unless its schema accepts null.
    """
    given = _by_name(operation, args, kwargs)
    checks = _checks(operation)
    start_counting()
    bound: dict[str, Json] = {}
    for parameter in operation.parameters:
        name = parameter.name
        if name not in given:
            if parameter.required:
                raise _type_error(operation, f"missing the required argument {name!r}")
            continue
        value, check = given[name], checks.get(name)
        if holds_bytes(value):
            bound[name] = _files(operation, parameter, value)
            continue
        if check is not None and (reason := _reason(check, value)):
            if value is None and not parameter.required:
                continue
            raise HostError("ValidationError", f"{operation.name}() argument {name!r}: {reason}")
        bound[name] = value
    return bound


def _files(operation: Operation, parameter: Parameter, value: Json) -> Json:
    """Bytes, where an argument may be bytes."""
    if takes_bytes(operation, parameter, value):
        return value
    refusal = "bytes is not JSON: pass None, bool, int, float, str, list or dict"
    raise HostError("TypeError", f"cannot pass the arguments of {operation.api}: {refusal}")


def _by_name(operation: Operation, args: list[Json], kwargs: Mapping[str, Json]) -> dict[str, Json]:
    names = dict.fromkeys(parameter.name for parameter in operation.parameters)
    if len(args) > len(names):
        raise _type_error(operation, f"takes {len(names)} arguments but {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise _type_error(operation, f"got more than one value for {name!r}")
        if name not in names:
            raise _type_error(operation, f"has no argument {name!r}, {nearest(name, names)}")
        given[name] = value
    return given


def _checks(operation: Operation) -> dict[str, Check]:
    """One validator per argument with a schema, built when the operation is first called."""
    checks = _validators.get(operation)
    if checks is None:
        checks = {each.name: Check(each.schema) for each in operation.parameters if each.schema}
        _validators[operation] = checks
    return checks


def _type_error(operation: Operation, problem: str) -> HostError:
    return HostError("TypeError", f"{operation.name}() {problem}; signature: {call_form(operation)}")


def _reason(check: Check, value: Json) -> str | None:
    """Why the value is refused; None if it is valid."""
    try:
        if check.accepts(value):
            return None
        error = check.error(value)
    except TooComplexError:
        return "it takes too long to check against its schema; pass less at once"
    if error is None:
        return "does not fit its schema"
    place = "".join(f"[{part!r}]" for part in error.absolute_path)
    message = error.message if len(error.message) <= _MESSAGE_CHARS else f"{error.message[:_MESSAGE_CHARS]}..."
    return f"{place}: {message}" if place else message
