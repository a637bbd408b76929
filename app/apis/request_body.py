"""Parses request bodies: each field of a JSON object or of a form is an argument, any other body is one."""

import re
from collections.abc import Mapping

import msgspec

from app.apis.binary_values import alternatives, is_binary
from app.apis.catalog import Parameter, Style
from app.apis.media_types import bare, is_binary_media, is_declared_json, is_form, is_json_lines
from app.apis.references import References, UnknownTargetError
from app.apis.short_text import short_repr
from app.apis.type_form import type_form
from app.errors import ApiDocumentError
from app.records import Json

_SIMPLEST_FIRST = (
    r"application/json|.*\+json",
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
_SENDABLE = re.compile(r"[\x20-\x7e]{1,200}")


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a request body."""

    fields: tuple[Parameter, ...] = ()
    is_object: bool = True
    media_type: str = "application/json"
    required: bool = False


def request_body(node: Json, references: References, where: str) -> Body:
    """Any value, if it is described in a document that was not read. Raises ApiDocumentError with the place."""
    if node is None:
        return Body()
    where = f"{where} body"
    try:
        node = references.follow(node, where)
    except UnknownTargetError:
        return Body(fields=(_body_field("body", {}, required=False),), is_object=False)
    content = node.get("content")
    if not isinstance(content, Mapping) or not content:
        return Body()
    media_type = _media_type(list(content))
    if not _SENDABLE.fullmatch(media_type):
        raise ApiDocumentError(f"{where}: {short_repr(media_type, 50)} is not a media type")
    media = references.follow(content[media_type], where)
    return _described(media, media_type, references, where, required=node.get("required") is True)


def _described(
    media: Mapping[str, Json], media_type: str, references: References, where: str, *, required: bool
) -> Body:
    schema = references.schema(media.get("schema", {}), where)
    media_type = _sent(media_type, schema)
    kind = bare(media_type)
    if kind.startswith("multipart/") and not is_form(kind):
        raise ApiDocumentError(f"{where}: {kind} is not supported; of the multipart types, multipart/form-data is")
    references.budget.spend(_FIELD_STEPS * len(schema.get("properties", ())), where)
    if is_declared_json(kind) or is_form(kind):
        if fields := _fields(schema, required, _encodings(media)):
            return Body(fields=fields, media_type=media_type, required=required)
    elif is_json_lines(kind):
        schema = _lines(references.schema(media.get("itemSchema", {}), where) or schema)
    else:
        schema = _text(schema, kind)
    whole = _body_field("body", schema, required)
    return Body(fields=(whole,), is_object=False, media_type=media_type, required=required)


def _media_type(offered: list[str]) -> str:
    """The simplest to encode: JSON, then a form, then text."""
    return min(offered, key=_effort)


def _effort(media_type: str) -> int:
    kind = bare(media_type)
    return next(place for place, pattern in enumerate(_SIMPLEST_FIRST) if re.fullmatch(pattern, kind, re.DOTALL))


def _sent(media_type: str, schema: dict[str, Json]) -> str:
    """A type in place of a range."""
    if "*" not in media_type:
        return media_type
    if all(map(is_binary, alternatives(schema))):
        return "application/octet-stream"
    kind = media_type.partition("/")[0]
    return {"*": "application/json", "application": "application/json", "text": "text/plain"}.get(
        kind, "application/octet-stream"
    )


def _lines(schema: dict[str, Json]) -> dict[str, Json]:
    """A list, also where the document describes one line."""
    return schema if schema.get("type") == "array" else {"type": "array", "items": schema}


def _text(schema: dict[str, Json], kind: str) -> dict[str, Json]:
    """Text of a format that the code has to write. What the document says about a structure is only described."""
    if schema.get("type") in _SCALARS:
        return schema
    if is_binary_media(kind):
        return {"type": "string", "format": "binary"}
    described = [f"{kind}, as text or bytes", type_form(schema), str(schema.get("description", ""))]
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


def _part_type(encoding: Mapping[str, Json]) -> str:
    """The type of a part, if the document gives one and not several to choose from."""
    given = encoding.get("contentType")
    return given if isinstance(given, str) and _ONE_TYPE.fullmatch(given) else ""


def _style(encoding: Mapping[str, Json]) -> Style:
    given = encoding.get("style")
    return next((each for each in _STYLES if each == given), "form")


def _body_field(
    name: str, schema: dict[str, Json], required: bool, encoding: Mapping[str, Json] = _PLAIN
) -> Parameter:
    style, explode = _style(encoding), encoding.get("explode")
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
