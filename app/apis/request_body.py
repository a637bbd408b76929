"""Parses the request body of an operation: each field of an object is an argument, any other body is one."""

import re
from collections.abc import Mapping

import msgspec

from app.apis.catalog import Parameter
from app.apis.references import References, UnknownTargetError
from app.apis.short_text import short_repr
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


_FIELD_STEPS = 3
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
    schema = references.schema(media.get("schema", {}), where)
    required = node.get("required") is True
    media_type = "application/json" if "*" in media_type else media_type
    references.budget.spend(_FIELD_STEPS * len(schema.get("properties", ())), where)
    if fields := _fields(schema, required):
        return Body(fields=fields, media_type=media_type, required=required)
    whole = _body_field("body", schema, required)
    return Body(fields=(whole,), is_object=False, media_type=media_type, required=required)


def _media_type(offered: list[str]) -> str:
    """The simplest to encode: JSON, then a form, then text."""
    return min(offered, key=_effort)


def _effort(media_type: str) -> int:
    plain = media_type.partition(";")[0].strip().lower()
    return next(place for place, pattern in enumerate(_SIMPLEST_FIRST) if re.fullmatch(pattern, plain, re.DOTALL))


def _fields(schema: dict[str, Json], required: bool) -> tuple[Parameter, ...]:
    """The fields of an object; none if the schema does not determine them."""
    if schema.get("type", "object") != "object" or schema.keys() & {"oneOf", "anyOf", "allOf", "not"}:
        return ()
    needed = set(schema.get("required", ())) if required else set()
    return tuple(
        _body_field(name, field, name in needed)
        for name, field in schema.get("properties", {}).items()
        if field.get("readOnly") is not True
    )


def _body_field(name: str, schema: dict[str, Json], required: bool) -> Parameter:
    return Parameter(
        name=name,
        wire_name=name,
        place="body",
        required=required,
        schema=schema,
        description=schema.get("description", ""),
    )
