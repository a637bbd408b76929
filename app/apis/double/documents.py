"""The operations of an OpenAPI document with what the double needs besides their arguments: every answer, the
whole body, the examples, and the path in segments.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from app.apis.catalog import App, Operation
from app.apis.documents.references import References
from app.apis.documents.swagger2 import as_openapi
from app.apis.double.shapes import (
    Schema,
    Shape,
    fields_of,
    flat,
    inferred,
    item_shape,
    kind_of,
    list_shape,
    noun_of,
)
from app.apis.media_types import (
    EVENT_STREAM,
    FORM,
    JSON_PATCH,
    PARTS,
    as_meant,
    bare,
    is_binary_media,
    is_declared_json,
    is_xml,
)
from app.apis.naming import split_words
from app.base.errors import ApiDocumentError
from app.base.values import Json

_PARAMETER: Final = re.compile(r"\{([^{}/]+)\}")
_SUFFIX: Final = re.compile(r"\.(json|\{format\})$")
METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_EXAMPLE_NODES: Final = 400  # of one operation that are looked at
_EXAMPLE_DEPTH: Final = 5
_EXAMPLES: Final = 12  # of one field


class Reply(msgspec.Struct, frozen=True):
    """An answer that the document names. Without a schema it has no content."""

    status: int
    schema: Schema | None = None
    media_type: str = "application/json"
    headers: Mapping[str, Schema] = {}


class Body(msgspec.Struct, frozen=True):
    """The body of a request; `shape` is where it has the record, if anywhere."""

    schema: Schema
    media_types: tuple[str, ...]  # JSON or forms
    required: bool
    shape: Shape | None = None

    @property
    def record(self) -> Schema | None:
        """What the one record in it has; None if it is no record, or several."""
        return self.shape.item if self.shape is not None and self.shape.holds == "one" else None

    @property
    def fields(self) -> dict[str, Schema]:
        """Of the record, or of each of several."""
        return {} if self.shape is None else fields_of(self.shape.item)


class Described(msgspec.Struct, frozen=True, eq=False):
    """One operation. `problem` is why it cannot be answered, whatever it does; "" if it can."""

    operation: Operation
    path: tuple[str, ...]
    parameters: tuple[str, ...]  # of the path, in order
    reply: Reply
    statuses: tuple[str, ...] = ()  # of successes
    errors: dict[str, Reply] = {}  # by status, `4XX` or `default`
    body: Body | None = None
    problem: str = ""
    key_schema: Schema = {}  # of the last path parameter
    examples: dict[str, list[Json]] = {}  # by field
    pinned: Mapping[str, str] = {}  # path parameters that have one value here, which names the kind of the records
    is_free: bool = False  # whether the document leaves open what the record in its body has

    @property
    def sent(self) -> Schema | None:
        """What the one record in its body has."""
        return None if self.body is None else self.body.record


def descriptions(
    app: App, document: Mapping[str, Json], source: str | None, samples: Mapping[str, Json]
) -> list[Described]:
    """Of all operations that can be called. `samples` stand in for schemas that the document lacks."""
    if "swagger" in document:
        document = as_openapi(document, source)
    references = References(document)
    nodes = dict(_nodes(document, references))
    return [
        _described(each, nodes.get((each.method.lower(), each.path), {}), references, samples.get(each.name))
        for each in app.operations.values()
    ]


def segments(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The path with `{}` for each parameter, and their names. What follows a colon is a segment, too.

    >>> segments("/v1/notes/{id}:close"), segments("/notes.json")
    ((('v1', 'notes', '{}', 'close'), ('id',)), (('notes',), ()))
    """
    plain = _SUFFIX.sub("", path.split("?")[0].rstrip("/")).replace("}:", "}/")
    parts = [each for each in plain.split("/") if each]
    names = tuple(_PARAMETER.findall(plain))
    return tuple(_PARAMETER.sub("{}", each) for each in parts), names


def _nodes(
    document: Mapping[str, Json], references: References
) -> Iterator[tuple[tuple[str, str], Mapping[str, Json]]]:
    for path, entry in document["paths"].items():
        try:
            item = references.follow(entry, path)
        except ApiDocumentError:
            continue
        for method in METHODS:
            if isinstance(item.get(method), Mapping):
                yield (method, path), item[method]


def _described(operation: Operation, node: Mapping[str, Json], references: References, sample: Json) -> Described:
    path, parameters = segments(operation.path)
    where = f"{operation.method} {operation.path}"
    odd = next((each for each in path if "{}" in each and each != "{}"), None)
    problem = "" if odd is None else "a part of its path has more than one value"
    problem = "its path has a fragment, which no request carries" if "#" in operation.path else problem
    own = {each.wire_name: each.schema for each in operation.parameters if each.place == "path"}
    key_schema = own.get(parameters[-1], {}) if parameters and path[-1:] == ("{}",) else {}
    try:
        reply, errors, refused = _replies(node.get("responses"), references, where, operation.method, sample)
        named = split_words(next((each for each in reversed(path) if each != "{}"), ""))
        body, unusable = _body(node, references, where, [*named, noun_of(named)])
    except ApiDocumentError as error:
        return Described(operation, path, parameters, Reply(200), problem=str(error), key_schema=key_schema)
    examples = _examples(node, references, reply, body)
    statuses = tuple(map(str, node["responses"])) if isinstance(node.get("responses"), Mapping) else ()
    reason = problem or refused or unusable
    return Described(operation, path, parameters, reply, statuses, errors, body, reason, key_schema, examples)


def _replies(
    responses: Json, references: References, where: str, method: str, sample: Json
) -> tuple[Reply, dict[str, Reply], str]:
    """The success, the errors, and why the success cannot be answered."""
    listed = responses if isinstance(responses, Mapping) else {}
    texts = {str(status): entry for status, entry in listed.items()}
    successes = sorted(each for each in texts if re.fullmatch(r"2(\d\d|XX)", each, re.IGNORECASE))
    status = _success(successes, method)
    known: dict[str, Reply] = {}
    for each, entry in texts.items():
        if each != status and not each.startswith(("1", "2", "3")):
            known[each] = _reply(entry, references, f"{where} response {each}", _number(each, 400))[0]
    if status is None and "default" in texts:
        status = "default"
        known.pop("default", None)
    entry = {} if status is None else texts[status]
    reply, problem = _reply(entry, references, f"{where} response {status}", _number(status or "", 200))
    if reply.schema in (None, {}) and sample is not None and not problem:
        reply = msgspec.structs.replace(reply, schema=inferred(sample))
    if not successes and any(each.startswith("3") for each in texts):
        problem = "it answers with a redirect"
    return reply, known, problem


def _success(statuses: Sequence[str], method: str) -> str | None:
    preferred = {"POST": ("201", "200"), "DELETE": ("204", "200"), "PUT": ("200", "204")}.get(method, ("200",))
    return next((each for each in preferred if each in statuses), next(iter(statuses), None))


def _number(status: str, otherwise: int) -> int:
    if status.isdecimal():
        return int(status)
    return int(status[0]) * 100 if re.fullmatch(r"[1-5]XX", status, re.IGNORECASE) else otherwise


def _reply(entry: Json, references: References, where: str, status: int) -> tuple[Reply, str]:
    """An answer, and why it cannot be given."""
    node = references.follow(entry, where)
    headers = _headers(node.get("headers"), references, where)
    content = node.get("content")
    if not isinstance(content, Mapping) or not content:
        return Reply(status, headers=headers), ""
    media_type = min(
        content, key=lambda each: (not is_declared_json(each), each != "*/*", not each.startswith("text/"))
    )
    kind = bare(media_type)
    media = content[media_type] if isinstance(content[media_type], Mapping) else {}
    if is_declared_json(kind) or "*" in kind:
        schema = references.schema(media.get("schema"), where)
        if not schema and (example := _whole_example(media, references)) is not None:
            schema = inferred(example)
        if not schema:
            return Reply(status, headers=headers), ""
        named = kind if is_declared_json(kind) else "application/json"
        binary = kind_of(flat(schema)) == "string" and flat(schema).get("format") == "binary"
        return Reply(status, schema, named, headers), "its answer is a file" if binary else ""
    problem = f"its answer is {kind[:60]}"
    if kind == EVENT_STREAM:
        problem = "its answer is a stream of events"
    elif is_xml(kind):
        problem = "its answer is XML"
    elif is_binary_media(kind) or flat(references.schema(media.get("schema"), where)).get("format") == "binary":
        problem = "its answer is a file"
    elif kind.startswith("text/"):
        return Reply(status, {"type": "string"}, kind, headers), ""
    return Reply(status, headers=headers), problem


def _headers(given: Json, references: References, where: str) -> dict[str, Schema]:
    named = given.items() if isinstance(given, Mapping) else ()
    return {name: references.schema(references.follow(each, where).get("schema"), where) for name, each in named}


def _body(
    node: Mapping[str, Json], references: References, where: str, words: Sequence[str]
) -> tuple[Body | None, str]:
    """The body, and why the double cannot take it."""
    if node.get("requestBody") is None:
        return None, ""
    entry = references.follow(node["requestBody"], f"{where} body")
    content = entry.get("content")
    if not isinstance(content, Mapping) or not content:
        return None, ""
    content = {as_meant(each): media for each, media in content.items()}
    usable = [each for each in content if is_declared_json(bare(each)) and bare(each) != JSON_PATCH]
    usable += [each for each in content if bare(each) in (FORM, PARTS) or "*" in each]
    required = entry.get("required") is True
    if not usable:
        named = bare(next(iter(content)))
        reason = "it takes a list of changes" if named == JSON_PATCH else f"its body is {named[:60]}"
        return None, "it takes a file" if is_binary_media(named) else reason
    media = references.follow(content[usable[0]], f"{where} body")
    schema = references.schema(media.get("schema"), f"{where} body")
    if not schema and (example := _whole_example(media, references)) is not None:
        schema = inferred(example)
    if any(flat(each).get("format") == "binary" for each in flat(schema).get("properties", {}).values()):
        return None, "it takes a file"
    shape = list_shape(schema) if kind_of(flat(schema)) == "array" else item_shape(schema, [*words])
    return Body(schema, tuple(usable), required, shape), ""


def _whole_example(media: Mapping[str, Json], references: References) -> Json:
    if media.get("example") is not None:
        return media["example"]
    for each in media["examples"].values() if isinstance(media.get("examples"), Mapping) else ():
        try:
            return references.follow(each, "example").get("value")
        except ApiDocumentError:
            continue
    return None


class _ExampleSearch:
    """Collects examples by the name of their field, from media types and from schemas."""

    def __init__(self, references: References) -> None:
        self.found: dict[str, list[Json]] = {}
        self._references, self._left = references, _EXAMPLE_NODES

    def of_value(self, value: Json) -> None:
        for each in value[:_EXAMPLES] if isinstance(value, list) else [value]:
            for name, inner in each.items() if isinstance(each, Mapping) else ():
                if isinstance(inner, str | int | float):
                    self.add(name, inner)
                self.of_value(inner)

    def of_schema(self, node: Json, name: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > _EXAMPLE_DEPTH or not isinstance(node, Mapping):
            return
        try:
            node = self._references.follow(node, "example")
        except ApiDocumentError:
            return
        if "example" in node:
            self.add(name, node["example"])
        for each in node["examples"] if isinstance(node.get("examples"), list) else ():
            self.add(name, each)
        for field, inner in node["properties"].items() if isinstance(node.get("properties"), Mapping) else ():
            self.of_schema(inner, field, depth + 1)
        for word in ("allOf", "anyOf", "oneOf"):
            for inner in node[word] if isinstance(node.get(word), list) else ():
                self.of_schema(inner, name, depth + 1)
        for word in ("items", "additionalProperties"):
            self.of_schema(node.get(word), name, depth + 1)

    def add(self, name: str, value: Json) -> None:
        if isinstance(value, Mapping | list):
            self.of_value(value)
        elif name and len(known := self.found.setdefault(name, [])) < _EXAMPLES and value not in known:
            known.append(value)


def _examples(
    node: Mapping[str, Json], references: References, reply: Reply, body: Body | None
) -> dict[str, list[Json]]:
    search = _ExampleSearch(references)
    responses = node.get("responses")
    listed = responses if isinstance(responses, Mapping) else {}
    for entry in (
        node.get("requestBody") if body else None,
        listed.get(str(reply.status)),
        listed.get(reply.status),
    ):
        try:
            content = references.follow(entry, "example").get("content") if entry is not None else None
        except ApiDocumentError:
            continue
        for media in content.values() if isinstance(content, Mapping) else ():
            if isinstance(media, Mapping):
                search.of_value(_whole_example(media, references))
                search.of_schema(media.get("schema"), "", 0)
    return search.found
