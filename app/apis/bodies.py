"""The request body of an operation: the fields of an object become arguments, anything else is one."""

import re
from collections.abc import Mapping

import msgspec

from app.apis.catalog import Parameter
from app.apis.references import References
from app.errors import ApiDocumentError
from app.records import Json

_SIMPLEST_FIRST = (
    r"application/json|.*\+json",
    r"\*/\*|application/\*|.*json.*",
    r"application/x-www-form-urlencoded",
    r"multipart/form-data",
    r"text/.*|application/(octet-stream|xml)",
)


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What a request body adds to the arguments."""

    fields: tuple[Parameter, ...] = ()
    is_object: bool = True
    media_type: str = "application/json"
    required: bool = False


def request_body(node: Json, references: References, where: str) -> Body:
    """Raises ApiDocumentError where no content type is one that code can write."""
    if node is None:
        return Body()
    where = f"{where} body"
    node = references.follow(node, where)
    content = node.get("content")
    if not isinstance(content, Mapping) or not content:
        return Body()
    media_type = _media_type(list(content), where)
    media = references.follow(content[media_type], where)
    schema = references.schema(media.get("schema", {}), where)
    required = node.get("required") is True
    media_type = "application/json" if "*" in media_type else media_type
    if fields := _fields(schema, required):
        return Body(fields=fields, media_type=media_type, required=required)
    whole = _body_field("body", schema, required)
    return Body(fields=(whole,), is_object=False, media_type=media_type, required=required)


def _media_type(offered: list[str], where: str) -> str:
    """The one that is simplest to write: JSON, then a form, then text."""
    for pattern in _SIMPLEST_FIRST:
        for media_type in offered:
            if re.fullmatch(pattern, media_type.partition(";")[0].strip().lower()):
                return media_type
    raise ApiDocumentError(f"{where}: none of the content types {', '.join(offered)} is supported")


def _fields(schema: dict[str, Json], required: bool) -> tuple[Parameter, ...]:
    """The fields of an object; none where the schema leaves open which object, or whether it is one."""
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
