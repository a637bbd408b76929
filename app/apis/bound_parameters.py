"""Parameters that the gateway fills in with stored secrets, so that the agent neither passes nor sees them.

`{"password": "secret:mail"}` binds the parameter of every operation that has it,
`{"log_in": {"password": "secret:mail"}}` that of one operation.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from app.apis.catalog import App, BoundParameter, Operation, Parameter
from app.apis.names import nearest
from app.apis.type_names import type_name
from app.base.errors import HostError, InvalidError
from app.base.untrusted import is_in_range
from app.base.values import Json

_REFERENCE = re.compile(r"secret:([A-Za-z0-9][A-Za-z0-9_.-]{0,63})")


def check_bindings(app: App, bind: Mapping[str, Json]) -> None:
    """Raises InvalidError that names what the API does not have, or what is not `secret:NAME`."""
    for name, target in bind.items():
        if isinstance(target, Mapping):
            known = (each for each in app.operations.values() if name in each.former_names)
            operation = app.operations.get(name) or next(known, None)
            if operation is None:
                raise InvalidError(f"bind: {app.name} has no operation {name!r}, {nearest(name, app.operations)}")
            _check(target, {each.name for each in operation.parameters}, f"{app.name}.{name}")
        else:
            every = {each.name for operation in app.operations.values() for each in operation.parameters}
            _check({name: target}, every, f"the API {app.name}")


def bind_parameters(app: App, bind: Mapping[str, Json]) -> App:
    """The app as the agent sees it: its operations lack the bound parameters. What it does not have is ignored."""
    if not bind:
        return app
    operations = {
        name: _bound(operation, dict(_targets(operation, bind))) for name, operation in app.operations.items()
    }
    return msgspec.structs.replace(app, operations=operations)


def filled(
    operation: Operation, arguments: Mapping[str, Json], values: Mapping[str, str]
) -> tuple[Operation, dict[str, Json]]:
    """The operation with all parameters and the arguments to send; `values` are those of its bound parameters.

    Raises HostError for a value that is no number where one is required.
    """
    parameters = tuple(each.parameter for each in operation.bound)
    given = {each.name: _typed(each, values[each.name]) for each in parameters}
    whole = msgspec.structs.replace(operation, parameters=(*operation.parameters, *parameters), bound=())
    return whole, {**arguments, **given}


def _check(targets: Mapping[str, Json], known: set[str], owner: str) -> None:
    for name, target in targets.items():
        if name not in known:
            raise InvalidError(f"bind: {owner} has no parameter {name!r}, {nearest(name, sorted(known))}")
        if not isinstance(target, str) or not _REFERENCE.fullmatch(target):
            raise InvalidError(f"bind: {name!r} must be `secret:NAME`, the name of a stored secret")


def _targets(operation: Operation, bind: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Parameter and name of its secret; what is bound for one operation comes last and wins."""
    flat = {name: target for name, target in bind.items() if isinstance(target, str)}
    for known in (*operation.former_names, operation.name):
        own = bind.get(known)
        flat |= dict(own) if isinstance(own, Mapping) else {}
    for name, target in flat.items():
        if match := _REFERENCE.fullmatch(target):
            yield name, match[1]


def _bound(operation: Operation, secrets: Mapping[str, str]) -> Operation:
    bound = tuple(
        BoundParameter(each, secrets[each.name]) for each in operation.parameters if each.name in secrets
    )
    if not bound:
        return operation
    kept = tuple(each for each in operation.parameters if each.name not in secrets)
    return msgspec.structs.replace(operation, parameters=kept, bound=bound)


def _typed(parameter: Parameter, value: str) -> Json:
    if type_name(parameter.schema) not in ("integer", "number"):
        return value
    with suppress(ValueError):
        number = json.loads(value)
        if type(number) in (int, float) and is_in_range(number):
            return number
    raise HostError("ApiError", f"the secret bound to {parameter.name!r} is not a number")
