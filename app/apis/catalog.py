"""What a project's APIs can do, as values: the apps, their operations, and what each takes and gives."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from app.records import Json

Place = Literal["path", "query", "header", "cookie", "body"]
Style = Literal["form", "simple", "deepObject", "spaceDelimited", "pipeDelimited", "json"]
"""How a value that is not a scalar is written outside a JSON body (OpenAPI 3.1, section 4.8.12.3)."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of an operation. The fields of a JSON object body are arguments of their own."""

    name: str  # a Python identifier; what the agent writes
    wire_name: str  # what the document calls it
    place: Place
    required: bool
    schema: dict[str, Json]  # JSON Schema, references resolved
    description: str = ""
    style: Style = "form"
    explode: bool = True


class Operation(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One `apis.<app>.<name>(...)`. Compared by identity, so that what is derived from it can be cached.

    Schemas share their parts with those of other operations: they are never changed, and never written out whole.
    """

    app: str
    name: str  # a Python identifier made of the operationId, or of method and path
    method: str  # upper case
    path: str  # with {wire_name} where path parameters go
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body_is_object: bool = True  # False: the whole body is the one argument `body`
    body_type: str = "application/json"
    body_required: bool = False  # True: a body of no fields is sent as {}
    server: str | None = None  # where the document gives it another server than its app
    declared_safe: bool | None = None  # what the document says with `x-safe`, if it does
    returns: dict[str, Json] = {}  # JSON Schema of the success response, references resolved

    @property
    def api(self) -> str:
        return f"{self.app}.{self.name}"

    @property
    def safe(self) -> bool:
        """Does it change nothing, so that a check may call it and it may be sent twice (RFC 9110, section 9.2.1)?

        The method tells, unless the document says `x-safe: true` (a log-in, a search by POST) or `x-safe: false`.
        """
        return self.method in {"GET", "HEAD", "OPTIONS"} if self.declared_safe is None else self.declared_safe


class App(msgspec.Struct, frozen=True, kw_only=True):
    """One API document, under the name the agent knows it by."""

    name: str
    description: str
    server: str  # base URL, {variables} still in it
    variables: dict[str, str]  # defaults of the server variables
    choices: dict[str, tuple[str, ...]] = {}  # all values of those that the document limits
    operations: dict[str, Operation]
    digest: str  # sha256 of the document
    protocol: str = "openapi"  # the part of the entry-point group `sage.api_protocols` that parsed it


class Catalog(msgspec.Struct, frozen=True):
    """All apps of one project. `supervisor.complete_task` and `api_docs` are built in and not listed here."""

    apps: Mapping[str, App] = {}

    def names(self) -> dict[str, list[str]]:
        """The operations of each app, as the sandbox wants them."""
        return {app.name: list(app.operations) for app in self.apps.values()}
