"""The built-in operations of every project: look-ups in the documents, and completion of the task."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import msgspec

from app.apis.catalog import App, Catalog, Operation, Parameter
from app.base.values import Json

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
        apps["supervisor"] = _supervisor(own)
    return Catalog(apps)


def _supervisor(own: App) -> App:
    """One per app: what is computed of an app is kept for it."""
    if own not in _SUPERVISORS:
        operations = {**own.operations, COMPLETE_TASK.name: COMPLETE_TASK}
        _SUPERVISORS[own] = msgspec.structs.replace(own, operations=operations)
    return _SUPERVISORS[own]


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

API_DOCS = _app(
    "api_docs",
    "Look up what the apps and their APIs do.",
    _operation("api_docs", "show_app_descriptions", "list the apps", _PAGE, returns=_LISTED),
    _operation("api_docs", "show_api_descriptions", "list the APIs of an app", _APP_NAME, _PAGE, returns=_LISTED),
    _operation(
        "api_docs",
        "show_api_doc",
        "everything about one API",
        _APP_NAME,
        _argument("api_name", _TEXT),
        _PAGE,
        returns={"type": "object"},
    ),
    _operation(
        "api_docs",
        "show_signatures",
        "the APIs of an app, one line each",
        _APP_NAME,
        _PAGE,
        returns=_TEXT,
    ),
    _operation(
        "api_docs",
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
