"""Parts of OpenAPI documents, and what is done with a hostile one."""

from contextlib import suppress

from app.apis.calls.arguments import bind
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import encode, parse_document
from app.apis.look_ups import search, show_api_descriptions, show_api_doc, show_signatures
from app.base.errors import ApiDocumentError, HostError
from app.base.values import Json

REF = "#/components/schemas/"


def openapi(paths: Json, **schemas: Json) -> dict[str, Json]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "T"},
        "servers": [{"url": "http://a.test"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def body(schema: Json) -> Json:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answer(schema: Json) -> Json:
    return {"responses": {"200": {"content": {"application/json": {"schema": schema}}}}}


def use(app: App) -> None:
    """Look everything up and call a few operations: nothing but a HostError is raised."""
    catalog = Catalog({app.name: app})
    show_api_descriptions(catalog, app.name)
    show_signatures(catalog, app.name)
    search(catalog, "list the mails of a person", 5)
    for operation in list(app.operations.values())[:5]:
        show_api_doc(catalog, app.name, operation.name)
        values: list[Json] = ["x", 10**30, None, [{}], {"a": [1.5]}]
        for given in values:
            with suppress(HostError):
                arguments = bind(operation, [], {each.name: given for each in operation.parameters})
                encode(app, operation, arguments)


def parsed(made: dict[str, Json]) -> App | None:
    """None if it is refused, with a reason of readable length."""
    try:
        return parse_document("t", made)
    except ApiDocumentError as error:
        reason = str(error)
    assert 0 < len(reason) < 5_000
    return None


def get(**node: Json) -> Json:
    return {"/x": {"get": {"operationId": "x", **node}}}


def nest(word: str, depth: int) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "string"}
    for _ in range(depth):
        schema = {word: [schema] if word == "allOf" else schema}
    return schema


def query(name: str, **schema: Json) -> Json:
    return {"name": name, "in": "query", "schema": schema}
