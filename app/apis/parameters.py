"""Parses the parameters of an operation outside its body: path, query, header and cookie."""

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from app.apis.catalog import Parameter, Place, Style
from app.apis.declared_values import sent_unasked
from app.apis.media_types import is_declared_json
from app.apis.references import References, UnknownTargetError
from app.apis.request_headers import is_header_name, is_reserved
from app.base.errors import ApiDocumentError
from app.base.values import Json

_PLACES: Final[dict[str, Place]] = {
    "path": "path",
    "query": "query",
    "querystring": "querystring",  # the whole query as one value, since OpenAPI 3.2
    "header": "header",
    "cookie": "cookie",
}
_DEFAULT_STYLE: Final[dict[Place, Style]] = {
    "path": "simple",
    "query": "form",
    "querystring": "form",
    "header": "simple",
    "cookie": "form",
}
_STYLES: Final[dict[Place, dict[str, Style]]] = {
    "path": {"simple": "simple", "matrix": "matrix", "label": "label"},
    "query": {
        "form": "form",
        "deepObject": "deepObject",
        "spaceDelimited": "spaceDelimited",
        "pipeDelimited": "pipeDelimited",
        "tabDelimited": "tabDelimited",  # of Swagger 2.0
    },
    "querystring": {},
    "header": {"simple": "simple"},
    "cookie": {"form": "form", "cookie": "cookie"},
}
_WORDS: Final = {word for words in _STYLES.values() for word in words}
_EXPLODED: Final = ("form", "cookie", "deepObject")  # unless the document says otherwise
_STEPS: Final = 10  # of a parameter
_IN_PATH: Final = re.compile(r"\{([^{}/]{1,200})\}")


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
    merged |= {("path", name): _undeclared(name) for name in undeclared}
    known = [each for each in merged.values() if _is_sent(each, places)]
    accepted = (sent_unasked(each.schema) for each in merged.values() if _key(each) == ("header", "accept"))
    accept = next((each for each in accepted if isinstance(each, str)), "")
    return Parameters(known, unread if len(unread) > len(undeclared) else [], accept)


def _key(parameter: Parameter) -> tuple[str, str]:
    return parameter.place, parameter.wire_name.lower()


def _undeclared(name: str) -> Parameter:
    return Parameter(name=name, wire_name=name, place="path", required=True, schema={"type": "string"})


def _is_sent(parameter: Parameter, places: Collection[str]) -> bool:
    if parameter.place == "path":
        return parameter.wire_name in places
    return parameter.place != "header" or not is_reserved(parameter.wire_name)


def _parameter(node: Mapping[str, Json], references: References, where: str) -> Parameter:
    name, located = node.get("name"), node.get("in")
    place = _PLACES.get(located) if isinstance(located, str) else None
    if not isinstance(name, str) or not name or place is None:
        raise ApiDocumentError(f"{where}: a parameter needs a name and `in`: {', '.join(_PLACES)}")
    where = f"{where} parameter {name[:100]}"
    if place == "header" and not is_header_name(name):
        raise ApiDocumentError(f"{where}: this cannot name a header")
    description = node.get("description")
    description = description.strip() if isinstance(description, str) else ""
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
        return _DEFAULT_STYLE[place] if is_text and not any(map(is_declared_json, kinds)) else "json"
    return _STYLES[place].get(str(node.get("style")), _DEFAULT_STYLE[place])


def _schema(node: Mapping[str, Json], references: References, where: str) -> dict[str, Json]:
    content = node.get("content")
    if isinstance(content, Mapping):
        media: Json = next(iter(content.values()), {})
        return references.schema(media.get("schema", {}) if isinstance(media, Mapping) else {}, where)
    return references.schema(node.get("schema", {}), where)
