"""A project's APIs as values: the apps, their operations, arguments and results."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from app.apis.documented_answers import DocumentedAnswers
from app.apis.security_schemes import Security, SecurityScheme
from app.base.values import Json
from app.projects.settings import ApprovalMode, Risk

Place = Literal["path", "query", "querystring", "header", "cookie", "body"]
Style = Literal[
    "form",
    "simple",
    "matrix",
    "label",
    "cookie",
    "deepObject",
    "spaceDelimited",
    "pipeDelimited",
    "tabDelimited",
    "json",
]
"""The serialization of a non-scalar value outside a JSON body (OpenAPI 3.1, section 4.8.12.3)."""

READING: Final = frozenset({"GET", "HEAD", "OPTIONS", "QUERY"})


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of an operation. Each field of a JSON object body is an argument."""

    name: str  # a Python identifier, used by the agent
    wire_name: str  # the name in the document
    place: Place
    required: bool
    schema: dict[str, Json]  # JSON Schema, references resolved
    description: str = ""
    style: Style = "form"
    explode: bool = True
    part_type: str = ""  # the media type of its part of a form; "": that of its value
    preset: bool = False  # the API requires it: its default is sent where the code gives no value


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body that an operation takes. `media_type` lists several, or ranges, where the content decides."""

    fields: tuple[Parameter, ...] = ()
    is_object: bool = True  # False: the whole body is the one argument `body`
    media_type: str = "application/json"
    required: bool = False
    parts: tuple[Parameter, ...] = ()  # of a form that is one argument: those whose encoding is declared


class BoundParameter(msgspec.Struct, frozen=True):
    """A parameter that the gateway fills in with a stored secret."""

    parameter: Parameter
    secret: str  # its name


class Operation(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One `apis.<app>.<name>(...)`. Compared by identity, so that values derived from it can be cached.

    Schemas share parts with those of other operations: never change them or serialize them whole.
    """

    app: str
    name: str  # a Python identifier, see `apis.naming`
    method: str  # of HTTP in upper case, or of MCP's JSON-RPC
    path: str  # with {wire_name} for path parameters; of MCP the server's name of the tool
    summary: str
    operation_id: str = ""  # as the document writes it
    tags: tuple[str, ...] = ()
    former_names: tuple[str, ...] = ()  # by which rules and bindings may know it
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    bound: tuple[BoundParameter, ...] = ()
    body_is_object: bool = True  # False: the whole body is the one argument `body`
    body_type: str = "application/json"
    body_required: bool = False  # True: a body without fields is sent as {}
    bodies: tuple[Body, ...] = ()  # if it takes several: the first that fits the arguments is sent
    server: str | None = None  # if the document sets another server than the app's
    declared_safe: bool | None = None  # `x-safe` of the document
    idempotent: bool = False  # repeating a call changes nothing more, though it is not read-only
    risk: Risk | None = None  # `x-risk` of the document
    approval: ApprovalMode | None = None  # set by a person, instead of `risk`
    explore: bool | None = None  # set by a person: whether exploring tasks may change something by it
    returns: dict[str, Json] = {}  # JSON Schema of the success response, references resolved
    answers: DocumentedAnswers = DocumentedAnswers()
    security: Security | None = None  # if it differs from the app's

    @property
    def api(self) -> str:
        return f"{self.app}.{self.name}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Their names, those of bound parameters not among them."""
        return tuple(each.name for each in self.parameters)

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments that every call has to give."""
        return tuple(each.name for each in self.parameters if each.required)

    @property
    def offered_bodies(self) -> tuple[Body, ...]:
        """The bodies that it takes, at least one."""
        fields = tuple(each for each in self.parameters if each.place == "body")
        one = Body(
            fields=fields, is_object=self.body_is_object, media_type=self.body_type, required=self.body_required
        )
        return self.bodies or (one,)

    @property
    def safe(self) -> bool:
        """Whether it is read-only, so that checks may call it and it may be repeated (RFC 9110, section 9.2.1).

        Decided by the method, unless the document sets `x-safe` (true for a log-in or a search by POST).
        """
        return self.method in READING if self.declared_safe is None else self.declared_safe

    @property
    def repeatable(self) -> bool:
        """Whether a call whose result was lost may be sent again."""
        return self.safe or self.idempotent


class LeftOut(msgspec.Struct, frozen=True):
    """An operation of a document that cannot be called, or a parameter of it that cannot be sent."""

    operation: str  #: method and path
    reason: str


class MisspelledRisk(LeftOut, frozen=True):
    """An operation whose `x-risk` is none: a new document with one is refused."""


class App(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One API document, under the name the agent knows it by. Compared by identity, as operations are."""

    name: str
    description: str
    server: str  # base URL with {variables}
    variables: dict[str, str]  # defaults of the server variables
    other_servers: tuple[str, ...] = ()  # that the document names, with the defaults of their variables
    choices: dict[str, tuple[str, ...]] = {}  # permitted values of the variables with an `enum`
    operations: dict[str, Operation]
    hidden: tuple[Operation, ...] = ()  # by a person: they cannot be called
    left_out: tuple[LeftOut, ...] = ()
    schemes: dict[str, SecurityScheme] = {}  # by name
    security: Security | None = None  # None: the document does not say where its schemes apply
    digest: str  # sha256 of the document
    source: str | None = None  # the URL of the document
    trusted: bool = True  # with its credentials: `server` is the one that they were given for
    token_origins: tuple[str, ...] = ()  # that get its credentials, besides the origin of `server`
    typed: bool = False  # whether signatures tell lists from objects
    protocol: str = "openapi"  # the part of the entry-point group `sage.api_protocols` that parsed it


class Catalog(msgspec.Struct, frozen=True):
    """All apps of one project. `supervisor.complete_task` and `api_docs` are built in and not listed here."""

    apps: Mapping[str, App] = {}

    def names(self) -> dict[str, list[str]]:
        """The names of the operations of each app."""
        return {app.name: list(app.operations) for app in self.apps.values()}

    def callables(self) -> dict[str, list[str]]:
        """What code may call of each app: the names, and "former=name" for those that operations had before."""
        return {app.name: [*app.operations, *_formerly(app)] for app in self.apps.values()}

    def is_read(self, api: str) -> bool:
        """Whether "app.operation" changes nothing. One that is unknown now may change something."""
        app, _, name = api.partition(".")
        operation = self.apps[app].operations.get(name) if app in self.apps else None
        return operation is not None and operation.safe


def _formerly(app: App) -> list[str]:
    former: dict[str, str] = {}
    for operation in app.operations.values():
        for name in operation.former_names:
            former.setdefault(name, operation.name)
    return [f"{name}={now}" for name, now in former.items() if name not in app.operations]
