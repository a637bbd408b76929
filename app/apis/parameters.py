"""Parses the parameters of an operation outside its body: path, query, header and cookie."""

from collections.abc import Mapping
from typing import Final

from app.apis.catalog import Parameter, Place, Style
from app.apis.references import References
from app.errors import ApiDocumentError
from app.records import Json

_PLACES: Final[dict[str, Place]] = {"path": "path", "query": "query", "header": "header", "cookie": "cookie"}
_DEFAULT_STYLE: Final[dict[Place, Style]] = {
    "path": "simple",
    "query": "form",
    "header": "simple",
    "cookie": "form",
}
_STYLES: Final[dict[tuple[str, str], Style]] = {
    ("path", "simple"): "simple",
    ("header", "simple"): "simple",
    ("cookie", "form"): "form",
    ("query", "form"): "form",
    ("query", "deepObject"): "deepObject",
    ("query", "spaceDelimited"): "spaceDelimited",
    ("query", "pipeDelimited"): "pipeDelimited",
}
_NOT_ARGUMENTS: Final = {"accept", "content-type", "authorization"}  # OpenAPI ignores these headers


def parameters(
    item: Mapping[str, Json], node: Mapping[str, Json], references: References, where: str
) -> list[Parameter]:
    """The parameters of the path, overridden by those of the operation; in the document's order."""
    merged: dict[tuple[str, str], Parameter] = {}
    for owner in (item, node):
        listed = owner.get("parameters") or []
        if not isinstance(listed, list):
            raise ApiDocumentError(f"{where}: parameters must be a list")
        for entry in listed:
            parameter = _parameter(references.follow(entry, f"{where} parameters"), references, where)
            merged[parameter.place, parameter.wire_name] = parameter
    return [each for each in merged.values() if each.place != "header" or each.name.lower() not in _NOT_ARGUMENTS]


def _parameter(node: Mapping[str, Json], references: References, where: str) -> Parameter:
    name, place = node.get("name"), _PLACES.get(str(node.get("in")))
    if not isinstance(name, str) or not name or place is None:
        raise ApiDocumentError(f"{where}: a parameter needs a name and `in`: path, query, header or cookie")
    where = f"{where} parameter {name}"
    description = node.get("description")
    style = _style(node, place, where)
    explode = node.get("explode")
    return Parameter(
        name=name,
        wire_name=name,
        place=place,
        required=place == "path" or node.get("required") is True,
        schema=_schema(node, references, where),
        description=description.strip() if isinstance(description, str) else "",
        style=style,
        explode=explode if isinstance(explode, bool) else style in ("form", "deepObject"),
    )


def _style(node: Mapping[str, Json], place: Place, where: str) -> Style:
    if "content" in node:
        return "json"
    if "style" not in node:
        return _DEFAULT_STYLE[place]
    style = _STYLES.get((place, str(node["style"])))
    if style is None:
        raise ApiDocumentError(f"{where}: style {node['style']!r} is not supported in {place}")
    return style


def _schema(node: Mapping[str, Json], references: References, where: str) -> dict[str, Json]:
    content = node.get("content")
    if isinstance(content, Mapping):
        media: Json = next(iter(content.values()), {})
        return references.schema(media.get("schema", {}) if isinstance(media, Mapping) else {}, where)
    return references.schema(node.get("schema", {}), where)
