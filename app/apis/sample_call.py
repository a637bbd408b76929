"""One call that shows whether an API answers: an operation that only reads, and needs no arguments."""

from collections.abc import Mapping

import msgspec

from app.apis.api_documents import encode
from app.apis.bind_arguments import bind
from app.apis.catalog import App, Operation
from app.apis.names import nearest
from app.apis.protocol import OutgoingRequest
from app.errors import HostError, InvalidError
from app.records import Json


class CallPlan(msgspec.Struct, frozen=True):
    """An operation by name, "" to have one chosen, and its arguments."""

    operation: str = ""
    arguments: dict[str, Json] = {}


class SampleCall(msgspec.Struct, frozen=True):
    """A call that is ready to be sent. The app has its operation alone, and no schemas."""

    app: App
    operation: str
    request: OutgoingRequest


def sample_call(app: App, plan: CallPlan) -> SampleCall:
    """Raises InvalidError that names the field for an operation that writes, or that there is not."""
    operation = _named(app, plan.operation) if plan.operation else _chosen(app)
    try:
        arguments = bind(operation, [], dict(plan.arguments))
        request = encode(app, operation, arguments)
    except HostError as error:
        raise InvalidError(f"arguments: {error.message}") from error
    bare = msgspec.structs.replace(operation, parameters=(), returns={})
    return SampleCall(msgspec.structs.replace(app, operations={operation.name: bare}), operation.name, request)


def _named(app: App, name: str) -> Operation:
    operation = app.operations.get(name)
    if operation is None:
        raise InvalidError(f"operation: {app.name} has no operation {name!r}, {nearest(name, app.operations)}")
    if not operation.safe:
        raise InvalidError(f"operation: {name} changes things ({operation.method}), and a test only reads")
    if operation.bound:
        raise InvalidError(f"operation: {name} has parameters that are bound to secrets; test another one")
    return operation


def _chosen(app: App) -> Operation:
    """The one with the shortest path, for that is most often a list or a state."""
    fit = [each for each in app.operations.values() if each.safe and not each.bound and not _required(each)]
    if not fit:
        raise InvalidError(
            f"operation: {app.name} has none that only reads and needs no arguments; name one, with `arguments`"
        )
    return min(fit, key=lambda each: (each.method != "GET", each.path.count("/"), len(each.path)))


def _required(operation: Operation) -> Mapping[str, object]:
    return {each.name: each for each in operation.parameters if each.required}
