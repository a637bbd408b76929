"""Converts Swagger 2.0 documents to OpenAPI 3.0. Pure.

References are kept, but for those to parameters, of which some become bodies.
"""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from app.apis.documents.references import DocumentBudget
from app.apis.media_types import FORM, PARTS, as_meant, bare, is_form
from app.base.values import Json

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch")
_MOVED: Final = {"#/definitions/": "#/components/schemas/", "#/responses/": "#/components/responses/"}
_SCHEMA_WORDS: Final = {
    "type", "format", "items", "default", "enum", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
    "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "x-nullable",
}  # fmt: skip
_KEPT: Final = ("info", "security", "tags", "externalDocs")
_STYLES: Final[dict[str, dict[str, Json]]] = {
    "csv": {"explode": False},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
    "tsv": {"style": "tabDelimited", "explode": False},  # which OpenAPI 3 lacks
    "multi": {"explode": True},
}
_FLOWS: Final = {
    "implicit": "implicit",
    "password": "password",
    "application": "clientCredentials",
    "accessCode": "authorizationCode",
}
_HOPS: Final = 10
_MEDIA_TYPES: Final = 10  # of one body or answer
_STEPS: Final = 10  # of a parameter


def as_openapi(document: Mapping[str, Json], source: str | None = None) -> dict[str, Json]:
    """The document as OpenAPI 3.0. `source` is where it came from. Raises DocumentSizeError."""
    return _Conversion(document, source).openapi()


class _Conversion:
    def __init__(self, document: Mapping[str, Json], source: str | None) -> None:
        self._document = document
        self._source = source
        self._budget = DocumentBudget()
        self._parameters: dict[int, dict[str, Json]] = {}  # converted ones, by identity

    def openapi(self) -> dict[str, Json]:
        document = self._document
        kept = {name: each for name, each in document.items() if name in _KEPT}
        extensions = {name: _schema(each) for name, each in document.items() if name.startswith("x-")}
        responses = _mapping(document.get("responses"))
        schemes = _mapping(document.get("securityDefinitions"))
        return {
            "openapi": "3.0.3",
            **kept,
            **extensions,
            "servers": [{"url": _server(document, self._source)}],
            "paths": {path: self._item(each) for path, each in _mapping(document.get("paths")).items()},
            "components": {
                "schemas": _schema(_mapping(document.get("definitions"))),
                "responses": {name: self._response(each, document) for name, each in responses.items()},
                "securitySchemes": {name: _security_scheme(each) for name, each in schemes.items()},
            },
        }

    def _item(self, item: Json) -> Json:
        if not isinstance(item, Mapping):
            return item
        shared = _listed(item.get("parameters"))
        kept = {name: each for name, each in item.items() if name == "$ref" or name.startswith("x-")}
        return kept | {
            method: self._operation(item[method], shared)
            for method in item
            if method in _METHODS and isinstance(item[method], Mapping)
        }

    def _operation(self, node: Mapping[str, Json], shared: list[Json]) -> dict[str, Json]:
        dropped = ("parameters", "responses", "consumes", "produces", "schemes")
        operation = {name: each for name, each in node.items() if name not in dropped}
        parameters = self._merged(shared, _listed(node.get("parameters")))
        outside = [each for each in parameters if each.get("in") not in ("body", "formData")]
        operation["parameters"] = list(map(self._parameter, outside))
        if (body := self._body(node, parameters)) is not None:
            operation["requestBody"] = body
        responses = _mapping(node.get("responses"))
        operation["responses"] = {status: self._response(each, node) for status, each in responses.items()}
        return operation

    def _merged(self, *lists: list[Json]) -> list[Mapping[str, Json]]:
        """The parameters of the path, overridden by those of the operation."""
        merged: dict[tuple[str, str], Mapping[str, Json]] = {}
        for listed in lists:
            for entry in listed:
                self._budget.spend(_STEPS, "parameters")
                parameter = self._resolved(entry)
                merged[str(parameter.get("in")), str(parameter.get("name"))] = parameter
        return list(merged.values())

    def _resolved(self, node: Json) -> Mapping[str, Json]:
        """The target of a reference within the document; a reference that leads nowhere is kept."""
        for _ in range(_HOPS):
            if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
                break
            found: Json = self._document
            for part in node["$ref"].removeprefix("#/").split("/"):
                part = unquote(part).replace("~1", "/").replace("~0", "~")
                found = found.get(part) if isinstance(found, Mapping) else None
            if found is None:
                break
            node = found
        return _mapping(node)

    def _parameter(self, parameter: Mapping[str, Json]) -> dict[str, Json]:
        if id(parameter) not in self._parameters:
            dropped = _SCHEMA_WORDS | {"collectionFormat", "allowEmptyValue"}
            known = {name: each for name, each in parameter.items() if name not in dropped}
            known["schema"] = _inline_schema(parameter)
            if parameter.get("in") == "query":
                known |= _list_style(parameter)
            self._parameters[id(parameter)] = known
        return self._parameters[id(parameter)]

    def _body(self, node: Mapping[str, Json], parameters: list[Mapping[str, Json]]) -> dict[str, Json] | None:
        whole = next((each for each in parameters if each.get("in") == "body"), None)
        fields = [each for each in parameters if each.get("in") == "formData"]
        consumed = self._media_types(node, "consumes")
        if whole is not None:
            if id(whole) not in self._parameters:
                self._parameters[id(whole)] = {"schema": _schema(whole.get("schema", {}))}
            content = dict.fromkeys(consumed or ["application/json"], self._parameters[id(whole)])
            return {"required": whole.get("required") is True, "content": content}
        if not fields:
            return None
        schema = {
            "type": "object",
            "properties": {str(each.get("name")): self._field(each) for each in fields},
            "required": [each["name"] for each in fields if each.get("required") is True and "name" in each],
        }
        files = any(each.get("type") == "file" for each in fields)
        forms = [each for each in map(as_meant, consumed) if is_form(bare(each))]
        parts = [each for each in forms if bare(each) == PARTS]
        if not forms:
            forms = [PARTS if files else FORM]
        encoding = {str(each.get("name")): _list_style(each) for each in fields}
        media = {"schema": schema, "encoding": encoding}
        return {
            "required": bool(schema["required"]),
            "content": dict.fromkeys(parts if files and parts else forms, media),
        }

    def _field(self, parameter: Mapping[str, Json]) -> dict[str, Json]:
        described = {"description": parameter["description"]} if "description" in parameter else {}
        return _inline_schema(parameter) | described

    def _response(self, node: Json, owner: Mapping[str, Json]) -> Json:
        if not isinstance(node, Mapping) or "$ref" in node:
            return _schema(node)
        response = {name: each for name, each in node.items() if name not in ("schema", "examples", "headers")}
        if "schema" in node:
            produced = self._media_types(owner, "produces")
            if _mapping(node["schema"]).get("type") == "file":
                produced = [each for each in produced if "json" not in each] or ["application/octet-stream"]
            media = {"schema": _schema(node["schema"])}
            response["content"] = dict.fromkeys(produced or ["application/json"], media)
        elif owner is not self._document and owner.get("produces"):
            response["content"] = {each: {} for each in self._media_types(owner, "produces")}
        return response

    def _media_types(self, node: Mapping[str, Json], name: str) -> list[str]:
        own = node.get(name)
        listed = own if isinstance(own, list) else _listed(self._document.get(name))
        return [each for each in listed if isinstance(each, str)][:_MEDIA_TYPES]


def _list_style(parameter: Mapping[str, Json]) -> dict[str, Json]:
    if parameter.get("type") != "array":
        return {}
    return _STYLES.get(str(parameter.get("collectionFormat")), _STYLES["csv"])


def _server(document: Mapping[str, Json], source: str | None) -> str:
    """Relative to the source where the document names no host."""
    base = document.get("basePath")
    path = "/" + base.strip("/") if isinstance(base, str) else "/"
    host = document.get("host")
    if not isinstance(host, str) or not host:
        return path
    schemes = [each for each in _listed(document.get("schemes")) if each in ("http", "https")]
    if not schemes and source is not None and urlsplit(source).scheme == "http":
        schemes = ["http"]
    return f"{'https' if 'https' in schemes or not schemes else 'http'}://{host}{path}".rstrip("/")


def _inline_schema(parameter: Mapping[str, Json]) -> dict[str, Json]:
    """The schema that a parameter spreads over its own fields."""
    schema: dict[str, Json] = _schema({name: each for name, each in parameter.items() if name in _SCHEMA_WORDS})
    return schema


def _schema(node: Json) -> Json:
    """A value in which every schema is one of OpenAPI 3.0."""
    if isinstance(node, list):
        return [_schema(each) for each in node]
    return dict(_members(node)) if isinstance(node, Mapping) else node


def _members(node: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    for name, each in node.items():
        if name == "$ref" and isinstance(each, str):
            yield name, _moved(each)
        elif name == "type" and each == "file":
            yield from (("type", "string"), ("format", "binary"))
        elif name == "discriminator" and isinstance(each, str):
            yield name, {"propertyName": each}
        elif name == "x-nullable":
            yield "nullable", each
        elif name in ("enum", "default", "example"):
            yield name, each
        else:
            yield name, _schema(each)


def _moved(reference: str) -> str:
    for old, new in _MOVED.items():
        if reference.startswith(old):
            return new + reference.removeprefix(old)
    return reference


def _security_scheme(node: Json) -> Json:
    scheme = _mapping(node)
    about = {name: each for name, each in scheme.items() if name == "description" or name.startswith("x-")}
    if scheme.get("type") == "basic":
        return about | {"type": "http", "scheme": "basic"}
    flow = _FLOWS.get(str(scheme.get("flow")))
    if scheme.get("type") == "oauth2" and flow is not None:
        urls = {name: scheme[name] for name in ("authorizationUrl", "tokenUrl") if name in scheme}
        return about | {"type": "oauth2", "flows": {flow: urls | {"scopes": _mapping(scheme.get("scopes"))}}}
    return node


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
