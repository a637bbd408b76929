"""Parses request bodies: each field of a JSON object or of a form is an argument, any other body is one."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from app.apis.catalog import Body, Parameter, Style
from app.apis.documents.references import DocumentSizeError, References, UnknownTargetError
from app.apis.documents.schemas import short_repr
from app.apis.listing import type_form
from app.apis.media_types import (
    JSON_PATCH,
    PARTS,
    as_meant,
    bare,
    is_binary_media,
    is_declared_json,
    is_form,
    is_json_lines,
    listed_types,
)
from app.apis.values import alternatives, is_binary, part_schemas
from app.base.errors import ApiDocumentError
from app.base.values import Json

_SIMPLEST_FIRST = (
    r"application/json",
    r"(?!application/json-patch\+json).*\+json",
    r"application/json-patch\+json",
    r"\*/\*|application/\*|.*json.*",
    r"application/x-www-form-urlencoded",
    r"multipart/form-data",
    r"text/.*",
    r".*",  # passed as text
)
_STYLES: tuple[Style, ...] = ("deepObject", "spaceDelimited", "pipeDelimited", "tabDelimited")  # besides `form`
_PLAIN: Mapping[str, Json] = {}
_ONE_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.-]+=[\w.+-]+)*", re.ASCII)  # neither a list nor a range
_FIELD_STEPS = 3
_SCALARS = ("string", "integer", "number", "boolean")
_SENDABLE_CHARS = 200
_SENDABLE = re.compile(rf"[\x20-\x7e]{{1,{_SENDABLE_CHARS}}}")
_FILE_TYPES = 20
_OPERATIONS: dict[str, Json] = {"type": "array", "items": {"type": "object"}}


def request_body(node: Json, references: References, where: str, *, patches: bool) -> tuple[Body, ...]:
    """The bodies that an operation takes, in the order in which they are tried. `patches`: its method is PATCH.

    Any value, if it is described in a document that was not read. Raises ApiDocumentError with the place.
    """
    if node is None:
        return (Body(),)
    where = f"{where} body"
    try:
        node = references.follow(node, where)
    except UnknownTargetError:
        return (Body(fields=(_body_field("body", {}, required=False),), is_object=False),)
    content = node.get("content")
    if not isinstance(content, Mapping) or not content:
        return (Body(),)
    content = _as_meant(content)

    def described(media_type: str) -> Body:
        if not _SENDABLE.fullmatch(media_type):
            raise ApiDocumentError(f"{where}: {short_repr(media_type, 50)} is not a media type")
        media = references.follow(content[media_type], where)
        return _described(media, media_type, references, where, required=node.get("required") is True)

    name = min(content, key=_effort)
    usual = described(name)
    kind = bare(usual.media_type)
    if is_declared_json(kind) or is_form(kind):
        lists = _patches(content, usual, described) if patches else ()
        has_file = any(_is_file(each.schema) for each in usual.fields)
        others = [
            each
            for each in content
            if (is_form(bare(each)) and (has_file or content[each] != content[name]))
            or (is_binary_media(bare(each)) and is_binary(_schema(content[each])))
        ]
        return (*lists, usual, *_others(others, usual, described), *_as_they_are(name, usual))
    return (msgspec.structs.replace(usual, media_type=_listed(usual.media_type, content)),)


def arguments_of(bodies: Sequence[Body]) -> tuple[Parameter, ...]:
    """An argument for each field that one of the bodies has; required if all of them require it."""
    merged: dict[str, Parameter] = {}
    for field in (field for body in bodies for field in body.fields):
        known = merged.get(field.wire_name, field)
        merged[field.wire_name] = msgspec.structs.replace(known, schema=_either(known.schema, field.schema))
    needed = set.intersection(*({each.wire_name for each in body.fields if each.required} for body in bodies))
    return tuple(msgspec.structs.replace(each, required=name in needed) for name, each in merged.items())


def _either(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """What is one of two values; the first if the second is of the same kind."""
    same = one.get("type") == other.get("type") and _is_file(one) == _is_file(other)
    return one if same or not (one or _is_file(other)) else {"anyOf": [one, other]}


def _is_file(schema: dict[str, Json]) -> bool:
    return any(map(is_binary, part_schemas(schema)))


def _patches(content: Iterable[str], usual: Body, described: Callable[[str], Body]) -> tuple[Body, ...]:
    """The JSON Patch beside another JSON: a list (RFC 6902, section 3), whatever the document says of it."""
    for media_type in content:
        if bare(media_type) != JSON_PATCH or bare(usual.media_type) == JSON_PATCH:
            continue
        patch = _readable(described, media_type)
        if patch is None:
            continue
        schema = {} if patch.is_object else patch.fields[0].schema
        if schema.get("type") == "array":
            return (patch,)
        if not usual.is_object:
            whole = _body_field("body", _OPERATIONS, patch.required)
            return (Body(fields=(whole,), is_object=False, media_type=media_type, required=patch.required),)
    return ()


def _others(content: Iterable[str], usual: Body, described: Callable[[str], Body]) -> tuple[Body, ...]:
    """Forms, and files, that take what the usual body does not: bytes, or other fields."""
    found: list[Body] = []
    known = {each.wire_name for each in usual.fields}
    for media_type in content:
        kind = bare(media_type)
        other = _readable(described, media_type) if kind != bare(usual.media_type) else None
        if other is None or other.is_object is not is_form(kind):
            continue
        takes_files = any(_is_file(each.schema) for each in other.fields)
        if takes_files or (other.is_object and not {each.wire_name for each in other.fields} <= known):
            found.append(other)
    return tuple(found)


def _as_they_are(media_type: str, usual: Body) -> Iterator[Body]:
    """Bytes beside JSON, where a document takes any value of any type."""
    if "*" in media_type and not usual.is_object and not usual.fields[0].schema:
        file = _body_field("body", {"type": "string", "format": "binary"}, usual.required)
        yield Body(fields=(file,), is_object=False, media_type=media_type, required=usual.required)


def _as_meant(content: Mapping[str, Json]) -> dict[str, Json]:
    """By the types that servers know; what is under one of them already stays."""
    return {as_meant(each): content[each] for each in content} | {
        each: media for each, media in content.items() if as_meant(each) == each
    }


def _schema(media: Json) -> dict[str, Json]:
    """The schema that is written at a media type itself."""
    schema = media.get("schema") if isinstance(media, Mapping) else None
    return schema if isinstance(schema, dict) else {}


def _readable(described: Callable[[str], Body], media_type: str) -> Body | None:
    """None for one that cannot be read: there is another."""
    try:
        return described(media_type)
    except DocumentSizeError:
        raise
    except ApiDocumentError:
        return None


def _listed(usual: str, content: Iterable[str]) -> str:
    """With the other types and ranges of files: the bytes decide."""
    others = (
        each for each in content if is_binary_media(bare(each)) and _ONE_TYPE.fullmatch(each.replace("*", "x"))
    )
    return ", ".join(dict.fromkeys([usual, *islice(others, _FILE_TYPES)]))


def _described(
    media: Mapping[str, Json], media_type: str, references: References, where: str, *, required: bool
) -> Body:
    schema = references.schema(media.get("schema", {}), where)
    parts: tuple[Parameter, ...] = ()
    media_type = _sent(media_type, schema)
    kind = bare(media_type)
    if kind.startswith("multipart/") and not is_form(kind):
        raise ApiDocumentError(f"{where}: {kind} is not supported; of the multipart types, multipart/form-data is")
    references.budget.spend(_FIELD_STEPS * len(schema.get("properties", ())), where)
    if is_declared_json(kind) or is_form(kind):
        encodings = _encodings(media)
        if fields := _fields(schema, required, encodings) or _only_file(kind, schema, required, encodings):
            return Body(fields=fields, media_type=media_type, required=required)
        references.budget.spend(_FIELD_STEPS * len(encodings), where)
        parts = (
            tuple(_body_field(name, {}, False, each) for name, each in encodings.items()) if is_form(kind) else ()
        )
    elif is_json_lines(kind):
        schema = references.schema(media.get("itemSchema", {}), where) or schema
        if schema.get("type") != "array":  # the document describes one line
            schema = {"type": "array", "items": schema}
    else:
        schema = _text(schema, kind)
    whole = _body_field("body", schema, required)
    return Body(fields=(whole,), is_object=False, media_type=media_type, required=required, parts=parts)


def _effort(media_type: str) -> int:
    """JSON is the simplest to encode, then a form, then text."""
    kind = bare(media_type)
    return next(place for place, pattern in enumerate(_SIMPLEST_FIRST) if re.fullmatch(pattern, kind, re.DOTALL))


def _sent(media_type: str, schema: dict[str, Json]) -> str:
    """A type in place of a range, unless that of the bytes is sent."""
    if "*" not in media_type or all(map(is_binary, alternatives(schema))):
        return media_type
    kind = media_type.partition("/")[0]
    return {"*": "application/json", "application": "application/json", "text": "text/plain"}.get(kind, media_type)


def _text(schema: dict[str, Json], kind: str) -> dict[str, Json]:
    """Text of a format that the code has to write. What the document says about a structure is only described."""
    if schema.get("type") in _SCALARS:
        return schema
    if is_binary_media(kind) or "*" in kind:
        return {"type": "string", "format": "binary"}
    title, form = schema.get("title"), type_form(schema)
    if isinstance(title, str) and title.isidentifier() and form:  # perhaps the name of the outermost element
        form = f"{title}, {form}"
    described = [f"{kind}, as text or bytes", form, str(schema.get("description", ""))]
    return {"type": "string", "description": ": ".join(filter(None, described))}


def _encodings(media: Mapping[str, Json]) -> dict[str, Mapping[str, Json]]:
    """What the document says about how the fields of a form are sent."""
    given = media.get("encoding")
    every = given.items() if isinstance(given, Mapping) else ()
    return {name: each for name, each in every if isinstance(each, Mapping)}


def _fields(
    schema: dict[str, Json], required: bool, encodings: Mapping[str, Mapping[str, Json]]
) -> tuple[Parameter, ...]:
    """The fields of an object; none if the schema does not determine them."""
    if schema.get("type", "object") != "object" or schema.keys() & {"oneOf", "anyOf", "allOf", "not"}:
        return ()
    needed = set(schema.get("required", ())) if required else set()
    return tuple(
        _body_field(name, field, name in needed, encodings.get(name, {}))
        for name, field in schema.get("properties", {}).items()
        if field.get("readOnly") is not True
    )


def _only_file(
    kind: str, schema: dict[str, Json], required: bool, encodings: Mapping[str, Mapping[str, Json]]
) -> tuple[Parameter, ...]:
    """The one part of a form that is described as a file alone, which gives it no name but in its encoding."""
    if kind != PARTS or not all(map(is_binary, part_schemas(schema))):
        return ()
    name = next(iter(encodings), "file")
    return (_body_field(name, schema, required, encodings.get(name, {})),)


def _part_type(encoding: Mapping[str, Json]) -> str:
    """The type of a part, or several, with ranges among them, to choose from by its bytes."""
    given = encoding.get("contentType")
    if not isinstance(given, str) or len(given) > _SENDABLE_CHARS:
        return ""
    return given if all(_ONE_TYPE.fullmatch(each.replace("*", "x")) for each in listed_types(given)) else ""


def _body_field(
    name: str, schema: dict[str, Json], required: bool, encoding: Mapping[str, Json] = _PLAIN
) -> Parameter:
    style: Style = next((each for each in _STYLES if each == encoding.get("style")), "form")
    explode = encoding.get("explode")
    return Parameter(
        name=name,
        wire_name=name,
        place="body",
        required=required,
        schema=schema,
        description=schema.get("description", ""),
        style=style,
        explode=explode if isinstance(explode, bool) else style in ("form", "deepObject"),
        part_type=_part_type(encoding),
    )
