"""The OpenAPI document, and a page to read and try it. All scripts are served from here.

What is written about a field in its type's source is read for this document and for forms: the docstring below
it, or the comment behind it that begins with `#:`.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from litestar import MediaType, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, OpenAPI, SecurityScheme, Tag
from litestar.response import Redirect
from litestar.router import Router
from litestar.static_files import create_static_files_router
from litestar.types import Method
from litestar.types.internal_types import PathParameterDefinition

from app.base.errors import SettingError
from app.base.untrusted import syntax_tree

_DESCRIPTION = """Give it tasks in natural language; it solves them by writing Python against your APIs, keeps the
functions that worked as skills, and offers them to later tasks.

Every request under `/v1` needs a key: `Authorization: Bearer sage_...`.
Errors are `application/problem+json`: the type `Problem`, whatever the status. `/readyz` says with 503 what is not
ready, as the type `Readiness`; errors of chats have the form of OpenAI's."""

_TAGS = [
    Tag(name="Tasks", description="Submit tasks, follow them, and read their results."),
    Tag(name="Chat", description="Tasks as chats, for clients of OpenAI's API; errors have its form."),
    Tag(name="Approvals", description="API calls that wait for a person."),
    Tag(name="Skills", description="Functions that the agent wrote and kept."),
    Tag(name="Feedback", description="Scores of results, given by people."),
    Tag(name="APIs", description="The APIs that the agent may call."),
    Tag(
        name="Projects",
        description="Isolated from each other, with APIs, skills, tasks and keys of their own.",
    ),
    Tag(name="Webhooks", description="Messages to a project's webhook."),
    Tag(name="Keys", description="API keys and their scopes."),
    Tag(name="Secrets", description="Values that the gateway fills into calls."),
    Tag(name="Hosted models", description="Models of other servers that a project may use."),
    Tag(name="Training", description="Training runs, their data and their schedule."),
    Tag(
        name="Releases",
        description="What serves a project: weights, skills, tools and prompt.",
    ),
    Tag(name="Health", description="For load balancers and monitoring; no key needed."),
]

_DOCUMENT = "/schema/openapi.json"
_OPEN = ("ChatRequest", "ChatMessage", "ContentPart", "StreamOptions")  # clients send more fields than we know
_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>sage-server API</title>
  <link rel="icon" href="/docs/static/favicon-32x32.png">
  <link rel="stylesheet" href="/docs/static/swagger-ui.css">
</head>
<body>
  <div id="page"></div>
  <script src="/docs/static/swagger-ui-bundle.js"></script>
  <script>
    SwaggerUIBundle({
      url: "/schema/openapi.json", dom_id: "#page", deepLinking: true, persistAuthorization: true,
      tryItOutEnabled: true, displayRequestDuration: true, validatorUrl: null
    });
  </script>
</body>
</html>
"""

_COMMENTED = re.compile(r"    (\w+): .*?  #: (.+)")


class FinishedDocument(OpenAPI):
    """The document with what the framework does not know: which bodies may have no further fields, and what is
    written about the fields of our types.
    """

    def to_schema(self) -> dict[str, Any]:
        document, structs = _close_bodies(super().to_schema()), _structs(msgspec.Struct)
        for name, schema in document["components"]["schemas"].items():
            if kind := structs.get(name):
                _describe_fields(schema, kind)
        return document


class _Config(OpenAPIConfig):
    def to_openapi_schema(self) -> OpenAPI:
        plain = super().to_openapi_schema()
        return FinishedDocument(**{each.name: getattr(plain, each.name) for each in fields(plain)})


def _close_bodies(document: dict[str, Any]) -> dict[str, Any]:
    """An object of a request with named fields has no others: `additionalProperties` is false."""
    schemas = document["components"]["schemas"]
    bodies = [each.get("requestBody") for path in document["paths"].values() for each in path.values()]
    open_names, closed = list(_references(bodies)), set[str]()
    while open_names:
        name = open_names.pop()
        if name not in closed:
            closed.add(name)
            open_names += _references(schemas[name])
            if "properties" in schemas[name] and name not in _OPEN:
                schemas[name].setdefault("additionalProperties", False)
    return document


def _describe_fields(schema: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """A field that is described by its own type keeps that description."""
    docs = field_docs(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in docs:
            schema["properties"][field.encode_name].setdefault("description", docs[field.name])


def _structs(base: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Our types by name."""
    found = {base.__name__: base} if base.__module__.startswith("app.") else {}
    for each in base.__subclasses__():
        found |= _structs(each)
    return found


def _references(part: object) -> Iterator[str]:
    """The names of the schemas that a part of the document refers to."""
    if isinstance(part, Mapping):
        if isinstance(target := part.get("$ref"), str):
            yield target.rpartition("/")[2]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _references(each)


def openapi_config(version: str) -> OpenAPIConfig:
    bearer = SecurityScheme(type="http", scheme="bearer", description="A key: `sage_...`")
    return _Config(
        title="sage-server",
        version=version,
        description=_DESCRIPTION,
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        path="/schema",
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        components=Components(security_schemes={"key": bearer}),
        tags=_TAGS,
        use_handler_docstrings=True,
        operation_id_creator=_operation_id,
    )


def _operation_id(handler: HTTPRouteHandler, _: Method, path: list[str | PathParameterDefinition]) -> str:
    """Such as `tasks_submit`: the collection and the action. Generated clients use these names."""
    words = [part for part in path if isinstance(part, str)]
    return f"{words[1].replace('-', '_')}_{handler.fn.__name__}" if words[0] == "v1" else words[0]


@get("/docs", media_type=MediaType.HTML, include_in_schema=False, sync_to_thread=False)
def show_docs() -> str:
    return _PAGE


@get("/", include_in_schema=False, sync_to_thread=False)
def show_root() -> Redirect:
    return Redirect("/docs")


@get("/openapi.json", include_in_schema=False, sync_to_thread=False)
def show_document() -> Redirect:
    """Where clients look for it first."""
    return Redirect(_DOCUMENT)


def docs_routes() -> list[Router | HTTPRouteHandler]:
    static = create_static_files_router(
        path="/docs/static", directories=[_ui_directory()], include_in_schema=False, name="docs-static"
    )
    return [show_root, show_document, show_docs, static]


def _ui_directory() -> Path:
    """The files of the package, which is located but not imported: an import would load its own handlers."""
    spec = find_spec("swagger_ui")
    if spec is None or spec.origin is None:
        raise SettingError("the package swagger-ui-py is missing: pip install swagger-ui-py")
    return Path(spec.origin).parent / "static"


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """By field; those of the types that it extends, too. A field about which nothing is written is not in it."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__annotations__" in vars(each):
            source = textwrap.dedent(inspect.getsource(each))
            found |= dict(_comments(source)) | dict(_docstrings(source))
    return found


def field_sections(kind: type) -> dict[str, str]:
    """The last comment of the class above each field."""
    found, section = {}, ""
    for line in textwrap.dedent(inspect.getsource(kind)).splitlines():
        if line.startswith("    # "):
            section = line.removeprefix("    # ")
        elif match := re.match(r"    (\w+): ", line):
            found[match[1]] = section
    return found


def _comments(source: str) -> Iterator[tuple[str, str]]:
    for line in source.splitlines():
        if match := _COMMENTED.fullmatch(line):
            yield match[1], match[2]


def _docstrings(source: str) -> Iterator[tuple[str, str]]:
    (definition,) = syntax_tree(source).body
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, " ".join(text.split())
