"""One call that shows whether an API answers: an operation that only reads, and needs no arguments."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.api_documents import encode
from app.apis.bind_arguments import bind
from app.apis.catalog import App, Operation
from app.apis.names import nearest
from app.apis.protocol import OutgoingRequest
from app.apis.security_schemes import sent_schemes
from app.base.errors import HostError, InvalidError
from app.base.values import Json

_NEEDS_OTHERS: Final = 2


class CallPlan(msgspec.Struct, frozen=True):
    """An operation by name, "" to have one chosen, and its arguments.

    One that needs stored credentials is chosen first: those of the schemes `credentials`, or a bearer token.
    """

    operation: str = ""
    arguments: dict[str, Json] = {}
    credentials: frozenset[str] = frozenset()
    has_token: bool = False


class SampleCall(msgspec.Struct, frozen=True):
    """A call that is ready to be sent. The app has its operation alone, and no schemas."""

    app: App
    operation: str
    request: OutgoingRequest


def sample_call(app: App, plan: CallPlan) -> SampleCall:
    """Raises InvalidError that names the field for an operation that writes, or that there is not."""
    operation = _named(app, plan.operation) if plan.operation else _chosen(app, _available(app, plan))
    try:
        arguments = bind(operation, [], dict(plan.arguments))
        request = encode(app, operation, arguments)
    except HostError as error:
        raise InvalidError(f"arguments: {error.message}") from error
    bare = msgspec.structs.replace(operation, parameters=(), returns={})
    return SampleCall(msgspec.structs.replace(app, operations={operation.name: bare}), operation.name, request)


def lacks_credentials(app: App, operation: Operation, credentials: frozenset[str], *, has_token: bool) -> bool:
    """Whether the document says that the operation needs other credentials than those that there are."""
    wanted = app.security if operation.security is None else operation.security
    plan = CallPlan(credentials=credentials, has_token=has_token)
    return wanted is not None and _protection(app, operation, _available(app, plan)) == _NEEDS_OTHERS


def _named(app: App, name: str) -> Operation:
    operation = app.operations.get(name)
    if operation is None:
        raise InvalidError(f"operation: {app.name} has no operation {name!r}, {nearest(name, app.operations)}")
    if not operation.safe:
        raise InvalidError(f"operation: {name} changes things ({operation.method}), and a test only reads")
    if operation.bound:
        raise InvalidError(f"operation: {name} has parameters that are bound to secrets; test another one")
    return operation


def _available(app: App, plan: CallPlan) -> frozenset[str]:
    served = {each.name for each in app.schemes.values() if plan.has_token and each.prefix == "Bearer"}
    return plan.credentials | served


def _chosen(app: App, credentials: frozenset[str]) -> Operation:
    """The one that tells most about the credentials; of several that with the shortest path, often a list."""
    fit = [each for each in app.operations.values() if each.safe and not each.bound and not _required(each)]
    if not fit:
        raise InvalidError(
            f"operation: {app.name} has none that only reads and needs no arguments; name one, with `arguments`"
        )
    return min(
        fit,
        key=lambda each: (
            _protection(app, each, credentials),
            each.method != "GET",
            each.path.count("/"),
            len(each.path),
        ),
    )


def _protection(app: App, operation: Operation, credentials: frozenset[str]) -> int:
    """0: it needs credentials that there are, 1: it accepts them, 2: it needs others, 3: it needs none."""
    wanted = app.security if operation.security is None else operation.security
    needs = bool(app.schemes) if wanted is None else bool(wanted) and () not in wanted
    if sent_schemes(wanted, app.schemes, credentials):
        return 0 if needs else 1
    return _NEEDS_OTHERS if needs else 3


def _required(operation: Operation) -> Mapping[str, object]:
    return {each.name: each for each in operation.parameters if each.required}
