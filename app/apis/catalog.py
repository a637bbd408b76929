"""A project's APIs as values: the apps, their operations, arguments and results.

The built-in operations of every project are among them: look-ups in the documents, and completion of the task.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal
from weakref import WeakKeyDictionary

import msgspec

from app.apis.credentials.schemes import Security, SecurityScheme
from app.apis.media_types import DocumentedAnswers
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

    def find(self, api: str) -> Operation | None:
        """An "app.operation"; None if it is unknown now."""
        app, _, name = api.partition(".")
        return self.apps[app].operations.get(name) if app in self.apps else None

    def is_read(self, api: str) -> bool:
        """Whether "app.operation" changes nothing. One that is unknown now may change something."""
        operation = self.find(api)
        return operation is not None and operation.safe


def _formerly(app: App) -> list[str]:
    former: dict[str, str] = {}
    for operation in app.operations.values():
        for name in operation.former_names:
            former.setdefault(name, operation.name)
    return [f"{name}={now}" for name, now in former.items() if name not in app.operations]


_TEXT: dict[str, Json] = {"type": "string"}
_LISTED: dict[str, Json] = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": _TEXT, "description": _TEXT}},
}

_SUPERVISORS: WeakKeyDictionary[App, App] = WeakKeyDictionary()


def with_builtins(catalog: Catalog) -> Catalog:
    """The catalog with `api_docs` and `supervisor.complete_task`; a supervisor app keeps its own operations."""
    apps = {"api_docs": API_DOCS, "supervisor": SUPERVISOR, **catalog.apps}
    if own := catalog.apps.get("supervisor"):
        if own not in _SUPERVISORS:  # one per app: what is computed of an app is kept for it
            operations = {**own.operations, COMPLETE_TASK.name: COMPLETE_TASK}
            _SUPERVISORS[own] = msgspec.structs.replace(own, operations=operations)
        apps["supervisor"] = _SUPERVISORS[own]
    return Catalog(apps)


def _argument(name: str, schema: Mapping[str, Json], *, required: bool = True, description: str = "") -> Parameter:
    return Parameter(
        name=name, wire_name=name, place="body", required=required, schema=dict(schema), description=description
    )


def _operation(
    app: str, name: str, summary: str, *parameters: Parameter, returns: Mapping[str, Json]
) -> Operation:
    return Operation(
        app=app, name=name, method="", path="", summary=summary, parameters=parameters, returns=dict(returns)
    )


def _app(name: str, description: str, *operations: Operation) -> App:
    named = {operation.name: operation for operation in operations}
    return App(name=name, description=description, server="", variables={}, operations=named, digest="")


_APP_NAME = _argument("app_name", _TEXT)
_PAGE = _argument("page", {"type": "integer", "minimum": 1, "maximum": 100, "default": 1}, required=False)

COMPLETE_TASK = _operation(
    "supervisor",
    "complete_task",
    "end the task, with the answer if it asks for one",
    _argument("answer", {}, required=False, description="What the task asked for; left out if it asked for none."),
    _argument("status", {"enum": ["success", "fail"], "default": "success"}, required=False),
    returns={"type": "object", "properties": {"message": _TEXT}},
)

SUPERVISOR = _app("supervisor", "The person you work for: ends the task.", COMPLETE_TASK)

_look_up = partial(_operation, "api_docs")

API_DOCS = _app(
    "api_docs",
    "Look up what the apps and their APIs do.",
    _look_up("show_app_descriptions", "list the apps", _PAGE, returns=_LISTED),
    _look_up("show_api_descriptions", "list the APIs of an app", _APP_NAME, _PAGE, returns=_LISTED),
    _look_up(
        "show_api_doc",
        "everything about one API",
        _APP_NAME,
        _argument("api_name", _TEXT),
        _PAGE,
        returns={"type": "object"},
    ),
    _look_up("show_signatures", "the APIs of an app, one line each", _APP_NAME, _PAGE, returns=_TEXT),
    _look_up(
        "search",
        "find APIs by what they do",
        _argument("query", _TEXT),
        _argument("limit", {"type": "integer", "minimum": 1, "default": 10}, required=False),
        _PAGE,
        returns={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"app_name": _TEXT, "api_name": _TEXT, "description": _TEXT},
            },
        },
    ),
)
