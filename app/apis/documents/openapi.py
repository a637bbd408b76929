"""Parses the operations of an OpenAPI document."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast, get_args

import msgspec

from app.apis.address import with_defaults
from app.apis.catalog import READING, LeftOut, MisspelledRisk, Operation, Parameter
from app.apis.declared_values import preset
from app.apis.document_budget import DocumentSizeError
from app.apis.documented_answers import DocumentedAnswers, documented_answers
from app.apis.media_types import EVENT_STREAM, bare, is_declared_json, result_schema
from app.apis.names import UniqueNames, argument_name, operation_name
from app.apis.parameters import parameters
from app.apis.references import References
from app.apis.request_body import arguments_of, request_body
from app.apis.security_schemes import security
from app.apis.words import singular, split_words
from app.base.errors import ApiDocumentError
from app.base.values import Json
from app.projects.settings import Risk

_MAX_OPERATIONS = 20_000
_OPERATION_STEPS = 20
_ARTICLES = {"a", "an", "the"}
_TAGS = 10  # of an operation, that a search reads
_PATH_CHARS = 2_000
_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace", "query"}
_OTHER_METHOD = re.compile(r"(?!CONNECT$)[A-Z][A-Z0-9-]{0,39}", re.IGNORECASE)  # of `additionalOperations`


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
    _spend(node, references, where)
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


def _spend(node: Mapping[str, Json], references: References, where: str) -> None:
    references.budget.spend(_OPERATION_STEPS, where)
    for word in ("operationId", "summary", "description"):
        references.budget.spend_text(_text(node, word), where)


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
