"""Swagger 2.0 documents, and what OpenAPI 3.2 adds."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
from litestar import Litestar, Request, route
from litestar.params import FromPath

from app.apis.calls.arguments import bind
from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import encode, parse_document, read_document
from app.apis.documents.swagger2 import as_openapi
from app.apis.listing import signature
from app.base.errors import ApiDocumentError
from app.base.values import Json
from tests.support.listening_app import listening_app

DOCUMENT = """
swagger: "2.0"
info: {title: Shop, description: Sells pets.}
host: shop.test
basePath: /v2/
schemes: [http, https]
consumes: [application/json]
produces: [application/json]
securityDefinitions:
  key: {type: apiKey, name: X-Key, in: header}
  plain: {type: basic}
  login:
    {type: oauth2, flow: accessCode, authorizationUrl: http://a.test, tokenUrl: http://t.test, scopes: {read: r}}
parameters:
  limit: {name: limit, in: query, type: integer, maximum: 10, default: 3}
  pet: {name: body, in: body, required: true, schema: {$ref: "#/definitions/Pet"}}
responses:
  Pets: {description: all, schema: {type: array, items: {$ref: "#/definitions/Pet"}}}
definitions:
  Pet:
    type: object
    required: [name]
    discriminator: kind
    properties:
      name: {type: string}
      kind: {type: string, x-nullable: true}
      parent: {$ref: "#/definitions/Pet"}
paths:
  /pets:
    parameters: [{$ref: "#/parameters/limit"}]
    get:
      operationId: listPets
      summary: list pets
      parameters:
        - {name: tags, in: query, type: array, items: {type: string}, collectionFormat: multi}
        - {name: ids, in: query, type: array, items: {type: integer}}
        - {name: codes, in: query, type: array, items: {type: string}, collectionFormat: pipes}
      responses: {200: {$ref: "#/responses/Pets"}}
    post:
      operationId: addPet
      parameters: [{$ref: "#/parameters/pet"}]
      responses: {201: {description: ok, schema: {$ref: "#/definitions/Pet"}}}
  /pets/{id}/photo:
    parameters: [{name: id, in: path, required: true, type: integer}]
    post:
      operationId: addPhoto
      consumes: [multipart/form-data]
      parameters:
        - {name: note, in: formData, type: string}
        - {name: file, in: formData, type: file, required: true}
      responses: {200: {description: ok}}
    get:
      operationId: showPhoto
      produces: [image/png]
      responses: {200: {description: ok, schema: {type: file}}}
  /log_in:
    post:
      operationId: logIn
      consumes: [application/x-www-form-urlencoded]
      parameters: [{name: password, in: formData, type: string, required: true}]
      responses: {200: {description: ok}}
  /labels:
    post:
      operationId: addLabels
      consumes: [application/x-www-form-urlencoded, multipart/form-data]
      parameters:
        - {name: plain, in: formData, type: array, items: {type: string}}
        - {name: many, in: formData, type: array, items: {type: string}, collectionFormat: multi}
        - {name: codes, in: formData, type: array, items: {type: integer}, collectionFormat: pipes}
        - {name: tabs, in: formData, type: array, items: {type: string}, collectionFormat: tsv}
      responses: {200: {description: ok}}
  /tabs:
    get:
      operationId: tabs
      parameters: [{name: t, in: query, type: array, items: {type: string}, collectionFormat: tsv}]
      responses: {200: {description: ok}}
"""


@pytest.fixture
def shop() -> App:
    return parse_document("shop", read_document(DOCUMENT))


def target(app: App, name: str, **arguments: Json) -> str:
    operation = app.operations[name]
    return encode(app, operation, bind(operation, [], arguments)).target


def test_operations_arguments_and_results_are_those_of_openapi(shop: App) -> None:
    assert shop.server == "https://shop.test/v2"
    assert shop.description == "Sells pets."
    assert [signature(each) for each in shop.operations.values()] == [
        "list_pets(limit=3, tags=None, ids=None, codes=None) -> name, kind, parent: list pets",
        "add_pet(name, limit=3, kind=None, parent=None) -> name, kind, parent",
        "add_photo(id, file, note=None)",
        "show_photo(id) -> bytes",
        "log_in(password)",
        "add_labels(plain=None, many=None, codes=None, tabs=None)",
        "tabs(t=None)",
    ]
    assert shop.left_out == ()


def test_lists_are_sent_by_their_collection_format(shop: App) -> None:
    given = target(shop, "list_pets", tags=["a", "b"], ids=[1, 2], codes=["x", "y"], limit=4)
    assert given == "/pets?limit=4&tags=a&tags=b&ids=1%2C2&codes=x%7Cy"
    assert target(shop, "tabs", t=["a", "b"]) == "/tabs?t=a%09b"


def test_lists_in_forms_are_sent_by_their_collection_format(shop: App) -> None:
    operation = shop.operations["add_labels"]
    letters = {name: ["a", "b"] for name in ("plain", "many", "tabs")}
    content = encode(shop, operation, bind(operation, [], {**letters, "codes": [1, 2]})).content
    assert parse_qsl((content or b"").decode()) == [
        ("plain", "a,b"), ("many", "a"), ("many", "b"), ("codes", "1|2"), ("tabs", "a\tb"),
    ]  # fmt: skip


def test_security_definitions_become_schemes() -> None:
    converted = as_openapi(read_document(DOCUMENT))
    assert converted["components"]["securitySchemes"] == {
        "key": {"type": "apiKey", "name": "X-Key", "in": "header"},
        "plain": {"type": "http", "scheme": "basic"},
        "login": {
            "type": "oauth2",
            "flows": {
                "authorizationCode": {
                    "authorizationUrl": "http://a.test",
                    "tokenUrl": "http://t.test",
                    "scopes": {"read": "r"},
                }
            },
        },
    }
    assert converted["components"]["schemas"]["Pet"]["properties"]["kind"] == {"type": "string", "nullable": True}


@pytest.mark.parametrize(
    ("where", "source", "server"),
    [
        ({}, "http://docs.test/a/swagger.json", "http://docs.test"),
        ({"basePath": "/api"}, "https://docs.test/a/swagger.json", "https://docs.test/api"),
        ({"host": "h.test:81"}, "http://docs.test/swagger.json", "http://h.test:81"),
        ({"host": "h.test", "schemes": ["wss", "http"]}, "https://docs.test/swagger.json", "http://h.test"),
        ({"host": "h.test"}, None, "https://h.test"),
    ],
)
def test_the_server_is_that_of_the_document_or_where_it_came_from(
    where: dict[str, Json], source: str | None, server: str
) -> None:
    document = {"swagger": "2.0", "paths": {"/a": {"get": {"responses": {}}}}, **where}
    assert parse_document("t", document, source=source).server == server


def test_without_a_host_an_uploaded_document_needs_a_server() -> None:
    with pytest.raises(ApiDocumentError, match="give the server's URL"):
        parse_document("t", {"swagger": "2.0", "paths": {"/a": {"get": {}}}})


@pytest.mark.parametrize(
    "broken",
    [
        {"definitions": 3, "parameters": [], "responses": "x", "securityDefinitions": None, "consumes": 1},
        {"paths": {"/a": {"get": {"parameters": [{"$ref": "#/parameters/none"}]}, "put": 3, "post": {}}}},
        {
            "parameters": {"p": {"$ref": "#/parameters/p"}},
            "paths": {"/a": {"get": {"parameters": "x"}, "post": {}}},
        },
        {"produces": ["text/plain"] * 1_000, "consumes": [{}] * 1_000},
    ],
)
def test_a_mutilated_document_is_read_as_far_as_it_goes(broken: dict[str, Json]) -> None:
    document = {"swagger": "2.0", "host": "a.test", "paths": {"/a": {"get": {}, "post": {}}}, **broken}
    assert "post_a" in parse_document("t", document).operations


def test_shared_parameters_cannot_unfold_without_end() -> None:
    wide = [{"$ref": "#/parameters/p"}] * 1_000
    paths = {f"/{number}": {"parameters": wide, "get": {"responses": {}}} for number in range(1_000)}
    document = {
        "swagger": "2.0",
        "host": "a.test",
        "parameters": {"p": {"name": "p", "in": "query"}},
        "paths": paths,
    }
    with pytest.raises(ApiDocumentError, match="too large"):
        parse_document("t", document)


@route("/{rest:path}", http_method=["GET"], status_code=200)
async def seen(request: Request[Any, Any, Any], rest: FromPath[str]) -> dict[str, str]:
    return {"method": request.method, "path": rest, "body": (await request.body()).decode()}


@pytest.fixture
async def server() -> AsyncIterator[str]:
    asgi = Litestar([seen], openapi_config=None, logging_config=None)

    async def renamed(scope: Any, receive: Any, send: Any) -> None:
        """Litestar routes the methods of HTTP/1.1 only."""
        given = scope.get("method", "")
        if given in ("QUERY", "PURGE"):
            scope = {**scope, "method": "GET", "path": f"/{given}{scope['path']}"}
        await asgi(scope, receive, send)

    async with listening_app(renamed, lifespan="off") as url:
        yield url


async def test_queries_and_additional_operations_of_openapi_3_2_are_called(server: str) -> None:
    query = {
        "operationId": "find",
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
    }
    item = {"query": query, "additionalOperations": {"PURGE": {"operationId": "purge"}, "GET / HTTP/1.1": {}}}
    app = parse_document("t", {"openapi": "3.2.0", "servers": [{"url": server}], "paths": {"/a": item}})
    assert [(each.name, each.method, each.safe) for each in app.operations.values()] == [
        ("find", "QUERY", True),
        ("purge", "PURGE", False),
    ]
    assert [each.reason for each in app.left_out] == ["this is not the name of a method"]
    async with open_client(allow_private_hosts=True) as client:
        gateway = Gateway(Catalog({"t": app}), client)
        assert await gateway("t.find", [], {"body": {"a": 1}}) == {
            "method": "GET", "path": "/QUERY/a", "body": '{"a":1}',
        }  # fmt: skip
        assert (await gateway("t.purge", [], {}))["path"] == "/PURGE/a"
