"""The protocol `openapi`: OpenAPI 3.0, 3.1 and 3.2, and Swagger 2.0 documents as apps.

Operations and parameters are parsed here; what a body takes stands in `request_body`.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, cast, get_args
from urllib.parse import urljoin, urlsplit

import msgspec

from app.apis.calls.arguments import encode
from app.apis.catalog import READING, App, LeftOut, MisspelledRisk, Operation, Parameter, Place, Style
from app.apis.credentials.schemes import is_header_name, is_reserved, security, security_schemes
from app.apis.documents.protocols import OutgoingRequest
from app.apis.documents.references import DocumentSizeError, References, UnknownTargetError, to_json_text
from app.apis.documents.request_body import arguments_of, request_body
from app.apis.documents.swagger2 import as_openapi
from app.apis.media_types import (
    EVENT_STREAM,
    DocumentedAnswers,
    bare,
    documented_answers,
    is_declared_json,
    result_schema,
)
from app.apis.naming import UniqueNames, argument_name, operation_name, singular, split_words
from app.apis.servers import with_defaults
from app.apis.values import preset, sent_unasked
from app.base.errors import ApiDocumentError
from app.base.values import Json
from app.projects.settings import Risk

_STYLES: Final[dict[Place, tuple[Style, ...]]] = {  # the default first
    "path": ("simple", "matrix", "label"),
    "query": ("form", "deepObject", "spaceDelimited", "pipeDelimited", "tabDelimited"),  # the last of Swagger 2.0
    "querystring": ("form",),  # the whole query as one value, since OpenAPI 3.2
    "header": ("simple",),
    "cookie": ("form", "cookie"),
}
_WORDS: Final = {word for words in _STYLES.values() for word in words}
_EXPLODED: Final = ("form", "cookie", "deepObject")  # unless the document says otherwise
_STEPS: Final = 10  # of a parameter
_IN_PATH: Final = re.compile(r"\{([^{}/]{1,200})\}")
_MAX_OPERATIONS: Final = 20_000
_OPERATION_STEPS: Final = 20
_ARTICLES: Final = {"a", "an", "the"}
_TAGS: Final = 10  # of an operation, that a search reads
_PATH_CHARS: Final = 2_000
_METHODS: Final = {"get", "put", "post", "delete", "options", "head", "patch", "trace", "query"}
_OTHER_METHOD: Final = re.compile(r"(?!CONNECT$)[A-Z][A-Z0-9-]{0,39}", re.IGNORECASE)  # of `additionalOperations`
_OTHER_SERVERS: Final = 10
_ADDRESS: Final = re.compile(r"(https?|\{\w+\})://[^/]")
_NOTHING_TO_CALL: Final = "the document has no operations under `paths`, so there is nothing to call"


class OpenApi:
    """Fulfils `ApiProtocol`."""

    def recognizes(self, document: Mapping[str, Json]) -> bool:
        return "openapi" in document or "swagger" in document

    def parse(self, name: str, document: Mapping[str, Json], source: str | None, server: str | None) -> App:
        digest = hashlib.sha256(to_json_text(document)).hexdigest()
        _check_version(document)
        if "swagger" in document:
            document = as_openapi(document, source)
        references = References(document)
        base, variables = _document_server(document, source)
        defaults = {key: str(each["default"]) for key, each in variables.items() if "default" in each}
        parsed, left_out = operations(name, document, references, defaults)
        if not parsed:
            raise ApiDocumentError(left_out[0].reason if left_out else _NOTHING_TO_CALL)
        if server is not None:
            base = server
            parsed = {key: msgspec.structs.replace(each, server=None) for key, each in parsed.items()}
        if not _ADDRESS.match(base):
            reason = "which is not an http(s) address; give the server's URL with it"
            raise ApiDocumentError(f"the document is served from {base!r}, {reason}")
        info = document.get("info")
        about = info if isinstance(info, Mapping) else {}
        return App(
            name=name,
            description=str(about.get("description") or about.get("title") or "").strip(),
            server=base.rstrip("/"),
            variables=defaults,
            other_servers=tuple(_other_servers(document, source)) if server is None else (),
            choices={key: tuple(map(str, _enum(each))) for key, each in variables.items() if "enum" in each},
            operations={
                key: each
                if each.server is None
                else msgspec.structs.replace(each, server=_absolute(each.server, base))
                for key, each in parsed.items()
            },
            left_out=tuple(left_out),
            schemes=security_schemes(document, references),
            security=security(document, references, "security"),
            source=source,
            digest=digest,
        )

    def encode(self, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
        return encode(operation, arguments)


OPENAPI = OpenApi()


class Parameters(NamedTuple):
    """Those that can be sent, and why others cannot; and the one value of the header `Accept`, "" without one."""

    known: list[Parameter]
    unread: list[str]
    accept: str


def parameters(
    path: str, item: Mapping[str, Json], node: Mapping[str, Json], references: References, where: str
) -> Parameters:
    """The parameters of the path, overridden by those of the operation; in the document's order.

    One that refers to a document that was not read is not sent, unless the path has its place. Parameters of the
    path are those that it has a place for, whatever is declared.
    """
    merged: dict[tuple[str, str], Parameter] = {}
    unread: list[str] = []
    for owner in (item, node):
        listed = owner.get("parameters") or []
        if not isinstance(listed, list):
            raise ApiDocumentError(f"{where}: parameters must be a list")
        for entry in listed:
            try:
                parameter = _parameter(references.follow(entry, place := f"{where} parameters"), references, where)
            except UnknownTargetError as error:
                unread.append(str(error).removeprefix(f"{place}: "))
            else:
                merged[parameter.place, parameter.wire_name] = parameter
    places = dict.fromkeys(_IN_PATH.findall(path))
    undeclared = [name for name in places if ("path", name) not in merged]
    for name in undeclared:
        merged["path", name] = Parameter(
            name=name, wire_name=name, place="path", required=True, schema={"type": "string"}
        )
    known = [each for each in merged.values() if _is_sent(each, places)]
    named = (each for each in merged.values() if each.place == "header" and each.wire_name.lower() == "accept")
    accept = next((value for each in named if isinstance(value := sent_unasked(each.schema), str)), "")
    return Parameters(known, unread if len(unread) > len(undeclared) else [], accept)


def _is_sent(parameter: Parameter, places: Collection[str]) -> bool:
    if parameter.place == "path":
        return parameter.wire_name in places
    return parameter.place != "header" or not is_reserved(parameter.wire_name)


def _parameter(node: Mapping[str, Json], references: References, where: str) -> Parameter:
    name = node.get("name")
    place = next((each for each in _STYLES if each == node.get("in")), None)
    if not isinstance(name, str) or not name or place is None:
        raise ApiDocumentError(f"{where}: a parameter needs a name and `in`: {', '.join(_STYLES)}")
    where = f"{where} parameter {name[:100]}"
    if place == "header" and not is_header_name(name):
        raise ApiDocumentError(f"{where}: this cannot name a header")
    description = _text(node, "description")
    references.budget.spend(_STEPS, where)
    references.budget.spend_text(description, where)
    style = _style(node, place)
    explode, given = node.get("explode"), node.get("style")
    exploded = (given if isinstance(given, str) and given in _WORDS else style) in _EXPLODED
    return Parameter(
        name=name,
        wire_name=name,
        place=place,
        required=place == "path" or node.get("required") is True,
        schema=_schema(node, references, where),
        description=description,
        style=style,
        explode=explode if isinstance(explode, bool) else exploded,
    )


def _style(node: Mapping[str, Json], place: Place) -> Style:
    """That of its place, if the document names another."""
    if "content" in node:
        kinds = node["content"] or ()
        is_text = place == "querystring" or (bool(kinds) and all(str(each).startswith("text/") for each in kinds))
        return _STYLES[place][0] if is_text and not any(map(is_declared_json, kinds)) else "json"
    return next((each for each in _STYLES[place] if each == node.get("style")), _STYLES[place][0])


def _schema(node: Mapping[str, Json], references: References, where: str) -> dict[str, Json]:
    content = node.get("content")
    owner: Json = next(iter(content.values()), {}) if isinstance(content, Mapping) else node
    return references.schema(owner.get("schema", {}) if isinstance(owner, Mapping) else {}, where)


class RiskError(ApiDocumentError):
    """The `x-risk` of an operation is not one of the levels."""


class Parsed(NamedTuple):
    """Operations under unique names; those that cannot be called, and parameters that cannot be sent."""

    operations: dict[str, Operation]
    left_out: list[LeftOut]


def operations(
    app: str, document: Mapping[str, Json], references: References, defaults: Mapping[str, str]
) -> Parsed:
    """Every operation of a document, whose server has variables with `defaults`. Raises DocumentSizeError."""
    found = Parsed({}, [])
    names = UniqueNames()
    for path, method, item, entry in _places(document, references, found.left_out):
        where = f"{method.upper()} {path}"
        if len(found.operations) + len(found.left_out) == _MAX_OPERATIONS:
            raise DocumentSizeError(f"{where}: the document has more than {_MAX_OPERATIONS:,} operations")
        try:
            node = references.follow(entry, where)
            name = names.add(operation_name(_text(node, "operationId"), method, path))
            operation, unread = _operation(app, name, path, method, item, node, references)
            server = _server(node, references, defaults) or _server(item, references, defaults)
            found.operations[name] = msgspec.structs.replace(operation, server=server)
            found.left_out.extend(LeftOut(where, f"it is called without a parameter: {each}") for each in unread)
        except DocumentSizeError:
            raise
        except RiskError as error:
            found.left_out.append(MisspelledRisk(where, str(error)))
        except ApiDocumentError as error:
            found.left_out.append(LeftOut(where, str(error)))
    return found


def _operation(
    app: str,
    name: str,
    path: str,
    method: str,
    item: Mapping[str, Json],
    node: Mapping[str, Json],
    references: References,
) -> tuple[Operation, list[str]]:
    """The operation, and why parameters of it cannot be sent."""
    where = f"{method.upper()} {path}"
    references.budget.spend(_OPERATION_STEPS, where)
    for word in ("operationId", "summary", "description"):
        references.budget.spend_text(_text(node, word), where)
    bodies = request_body(node.get("requestBody"), references, where, patches=method == "patch")
    body = bodies[0]
    outside = parameters(path, item, node, references, where)
    returns, answers = _documented(node.get("responses"), references, where, outside.accept)
    operation = Operation(
        app=app,
        name=name,
        method=method.upper(),
        path=path,
        summary=_summary(node),
        operation_id=_text(node, "operationId"),
        tags=_tags(node),
        description=_text(node, "description"),
        parameters=_arguments([*outside.known, *arguments_of(bodies)], method.upper() in READING),
        body_is_object=body.is_object,
        body_type=body.media_type,
        body_required=body.required,
        bodies=bodies if len(bodies) > 1 or body.parts else (),
        returns=returns,
        answers=answers,
        declared_safe=_safety(node, where),
        risk=_risk(node, where),
        security=security(node, references, where),
    )
    return operation, outside.unread


def _places(
    document: Mapping[str, Json], references: References, left_out: list[LeftOut]
) -> Iterator[tuple[str, str, Mapping[str, Json], Json]]:
    """Path, method and path item of each operation, and the operation."""
    for path, item in document["paths"].items():
        if not path.startswith("/"):  # other keys are extensions
            continue
        try:
            if len(path) > _PATH_CHARS:
                path = f"{path[:100]}..."
                raise ApiDocumentError(f"paths/{path}: a path has more than {_PATH_CHARS:,} characters")
            item = references.follow(item, f"paths/{path}")
        except DocumentSizeError:
            raise
        except ApiDocumentError as error:
            left_out.append(LeftOut(path, str(error)))
            continue
        yield from ((path, method, item, item[method]) for method in item if method in _METHODS)
        others = item.get("additionalOperations")
        for method, entry in others.items() if isinstance(others, Mapping) else ():
            if _OTHER_METHOD.fullmatch(method):
                yield path, method.lower(), item, entry
            else:
                left_out.append(LeftOut(f"{method[:50]} {path}", "this is not the name of a method"))


def _arguments(every: list[Parameter], is_read: bool) -> tuple[Parameter, ...]:
    """Required arguments first, as in Python. If a name is taken, the later one is prefixed with its place."""
    named: dict[str, Parameter] = {}
    names = UniqueNames()
    for each in every:
        name = argument_name(each.wire_name)
        name = names.add(f"{each.place}_{name}" if name in names else name)
        named[name] = msgspec.structs.replace(each, name=name)
    found = [preset(each, with_default=is_read or each.place != "path") for each in named.values()]
    return tuple(sorted(found, key=lambda parameter: not parameter.required))


def _documented(
    responses: Json, references: References, where: str, accept: str
) -> tuple[dict[str, Json], DocumentedAnswers]:
    """The schema of the first successful response with content, {} without one, and all that is answered.

    Where that cannot be read, nothing is known: the call can be made all the same.
    """
    try:
        if not isinstance(responses, Mapping):
            return {}, documented_answers((), (), accept)
        successes = sorted((status for status in responses if str(status).startswith("2")), key=str)
        contents = dict(_contents(successes or ["default"], responses, references, where))
        answers = documented_answers(responses, contents.values() if successes else (), accept)
        return _returns(contents, references), answers
    except DocumentSizeError:
        raise
    except ApiDocumentError:
        return {}, DocumentedAnswers()


def _contents(
    statuses: list[Json], responses: Mapping[str, Json], references: References, where: str
) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Place and content of each response that has any."""
    for status in statuses:
        place = f"{where} response {status}"
        content = references.follow(responses.get(status, {}), place).get("content")
        if isinstance(content, Mapping):
            yield place, content


def _returns(contents: Mapping[str, Mapping[str, Json]], references: References) -> dict[str, Json]:
    for place, content in contents.items():
        for media_type in sorted(content, key=lambda each: not is_declared_json(each)):  # JSON is asked for first
            media = content[media_type]
            described = media if isinstance(media, Mapping) else {}
            if bare(media_type) == EVENT_STREAM and "itemSchema" in described:
                return references.schema({"type": "array", "items": described["itemSchema"]}, place)
            if is_declared_json(media_type) or media_type == "*/*":
                return references.schema(described.get("schema", {}), place)
            if (known := result_schema(media_type)) is not None:
                return known
    return {}


def _safety(node: Mapping[str, Json], where: str) -> bool | None:
    """The extension `x-safe`: whether an operation is read-only, overriding its method."""
    value = node.get("x-safe")
    if value is None or isinstance(value, bool):
        return value
    raise ApiDocumentError(f"{where}: `x-safe` is true or false, not {str(value)[:50]!r}")


def _risk(node: Mapping[str, Json], where: str) -> Risk | None:
    """The extension `x-risk`, which decides whether calls wait for a person's approval."""
    value = node.get("x-risk")
    if value is None:
        return None
    for level in get_args(Risk):
        if value == level:
            return cast(Risk, level)
    raise RiskError(f"{where}: `x-risk` is one of {', '.join(get_args(Risk))}, not {str(value)[:50]!r}")


def _summary(node: Mapping[str, Json]) -> str:
    """One line: the summary, or the first line of the description if that is more than the name in words."""
    text, told = _text(node, "summary"), _text(node, "description")
    if told and _is_name(text, _text(node, "operationId")):
        text = told
    return " ".join(text.splitlines()[0].split()) if text else ""


def _is_name(summary: str, operation_id: str) -> bool:
    """Whether it says nothing else, as what FastAPI makes of the name of a function, or is empty."""
    named = {singular(word) for word in split_words(operation_id)}
    return {singular(word) for word in split_words(summary)} - _ARTICLES <= named


def _tags(node: Mapping[str, Json]) -> tuple[str, ...]:
    tags = node.get("tags")
    return tuple(each for each in tags[:_TAGS] if isinstance(each, str)) if isinstance(tags, list) else ()


def _server(node: Mapping[str, Json], references: References, defaults: Mapping[str, str]) -> str | None:
    """A variable that it has in common with the document's server, default and all, is left to the task."""
    servers = node.get("servers")
    if not isinstance(servers, list) or not servers:
        return None
    server = servers[0] if isinstance(servers[0], Mapping) else {}
    url = server.get("url")
    if not isinstance(url, str):
        raise ApiDocumentError("servers/0: a server needs a url")
    references.budget.spend_text(url, "servers/0")
    return with_defaults(url, server.get("variables"), defaults)


def _text(node: Mapping[str, Json], name: str) -> str:
    value = node.get(name)
    return value.strip() if isinstance(value, str) else ""


def _check_version(document: Mapping[str, Json]) -> None:
    field, supported = ("swagger", r"2\.0") if "swagger" in document else ("openapi", r"3\.[012](\..*)?")
    version = document.get(field)
    if field == "swagger" and version == 2.0:  # in YAML without quotes
        version = "2.0"
    if not isinstance(version, str):
        raise ApiDocumentError("this is not an OpenAPI document: it has no `openapi` version at the top")
    if not re.fullmatch(supported, version):
        raise ApiDocumentError(f"OpenAPI {version[:50]} is not supported; 2.0 (Swagger), 3.0, 3.1 and 3.2 are")
    if not isinstance(document.get("paths"), Mapping) or not document["paths"]:
        raise ApiDocumentError(_NOTHING_TO_CALL)


def _document_server(document: Mapping[str, Json], source: str | None) -> tuple[str, Mapping[str, Json]]:
    """The first server, absolute if the source is, and its variables."""
    servers = document.get("servers") or [{"url": "/"}]
    if not isinstance(servers, list) or not isinstance(servers[0], Mapping):
        raise ApiDocumentError("servers: expected a list of objects with a url")
    url = servers[0].get("url")
    if not isinstance(url, str):
        raise ApiDocumentError("servers/0: a server needs a url")
    variables = servers[0].get("variables") or {}
    if not isinstance(variables, Mapping):
        raise ApiDocumentError("servers/0/variables: expected an object")
    return _absolute(url, source), {key: each for key, each in variables.items() if isinstance(each, Mapping)}


def _other_servers(document: Mapping[str, Json], source: str | None) -> Iterator[str]:
    """Those after the first that have an address. One that cannot be read is left out."""
    for entry in (document.get("servers") or [])[1 : _OTHER_SERVERS + 1]:
        try:
            base, variables = _document_server({"servers": [entry]}, source)
        except ApiDocumentError:
            continue
        base = with_defaults(base, variables)
        if _ADDRESS.match(base) and "{" not in base:
            yield base.rstrip("/")


def _enum(variable: Mapping[str, Json]) -> list[Json]:
    enum = variable["enum"]
    if not isinstance(enum, list):
        raise ApiDocumentError("servers/0/variables: an `enum` is a list")
    return enum


def _absolute(url: str, source: str | None) -> str:
    try:
        relative = not _ADDRESS.match(url)  # urljoin would take {scheme}:// for one
        if relative and source is not None and urlsplit(source).scheme in ("http", "https"):
            return urljoin(source, url)
        urlsplit(url)
    except ValueError as error:
        raise ApiDocumentError(f"servers: {url!r} is not an address: {error}") from error
    return url
