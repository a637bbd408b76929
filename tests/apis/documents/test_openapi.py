"""OpenAPI documents become apps, or are refused with the reason."""

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.calls.arguments import bind
from app.apis.catalog import App, Operation
from app.apis.documents.openapi import OPENAPI
from app.apis.documents.protocols import encode, parse_document, read_document
from app.apis.listing import signature
from app.apis.servers import address
from app.base.errors import ApiDocumentError
from app.base.values import Json
from app.projects import store as projects
from tests.support.processor_time import within

SHOP = """
openapi: 3.0.3
info: {title: Shop, version: 2020-01-01, description: Sells things.}
servers:
  - url: https://{region}.shop.test:{port}/v1
    variables: {region: {default: eu, enum: [eu, us]}, port: {default: 8443}}
paths:
  /orders/{orderId}:
    summary: one order
    parameters:
      - $ref: '#/components/parameters/OrderId'
      - {name: verbose, in: query, schema: {type: boolean}}
    get:
      operationId: getOrder
      summary: look up an order
      parameters:
        - {name: verbose, in: query, required: true, schema: {type: integer, minimum: 0, exclusiveMinimum: true}}
        - {name: Authorization, in: header, schema: {type: string}}
        - {name: filter, in: query, content: {application/json: {schema: {type: object}}}}
      responses:
        200: {description: ok, content: {application/json: {schema: {$ref: '#/components/schemas/Order'}}}}
        404: {$ref: '#/components/responses/Missing'}
    patch:
      operationId: updateOrder
      requestBody: {$ref: '#/components/requestBodies/Order'}
      responses: {'204': {description: nothing}}
    delete:
      responses: {204: {description: gone}}
components:
  parameters:
    OrderId: {name: orderId, in: path, required: true, schema: {type: integer}}
  requestBodies:
    Order: {required: true, content: {application/json: {schema: {$ref: '#/components/schemas/Order'}}}}
  responses:
    Missing: {description: none}
  schemas:
    Thing:
      type: object
      required: [id, note]
      additionalProperties: false
      properties: {id: {type: integer, readOnly: true}, note: {type: string, nullable: true}}
    Order:
      allOf:
        - $ref: '#/components/schemas/Thing'
        - type: object
          required: [orderId]
          properties:
            orderId: {type: string, enum: [yes, no, 2020-01-01]}
            parent: {$ref: '#/components/schemas/Order'}
            from: {type: string, example: iris, x-internal: true}
"""

PLAIN: dict[str, Json] = {
    "openapi": "3.1.0",
    "info": {"title": "Mail"},
    "servers": [{"url": "http://mail.test/api/"}],
    "paths": {"/mails": {"get": {"operationId": "list_mails"}}},
}


def shop() -> App:
    return parse_document("shop", read_document(SHOP))


def test_a_yaml_document_becomes_operations_with_resolved_parameters() -> None:
    app = shop()
    assert list(app.operations) == ["get_order", "update_order", "delete_orders_order_id"]
    assert (app.description, app.server) == ("Sells things.", "https://{region}.shop.test:{port}/v1")
    assert app.variables == {"region": "eu", "port": "8443"}
    order, verbose, query = app.operations["get_order"].parameters
    assert (order.name, order.place, order.schema) == ("orderId", "path", {"type": "integer"})
    assert (verbose.required, verbose.schema) == (True, {"type": "integer", "exclusiveMinimum": 0})
    assert (query.name, query.style) == ("filter", "json")
    assert app.operations["get_order"].summary == "look up an order"


def test_body_fields_become_arguments_and_conflicting_names_get_their_place() -> None:
    update = shop().operations["update_order"]
    assert [(each.name, each.wire_name, each.place, each.required) for each in update.parameters] == [
        ("orderId", "orderId", "path", True),
        ("note", "note", "body", True),
        ("body_orderId", "orderId", "body", True),
        ("verbose", "verbose", "query", False),
        ("parent", "parent", "body", False),
        ("from_", "from", "body", False),
    ]
    schemas = {each.name: each.schema for each in update.parameters}
    assert schemas["note"] == {"type": ["string", "null"]}
    assert schemas["body_orderId"]["enum"] == ["yes", "no", "2020-01-01"]
    assert schemas["from_"] == {"type": "string"}
    assert schemas["parent"]["required"] == ["note", "orderId"]
    assert "additionalProperties" not in schemas["parent"]


def test_a_document_may_declare_which_operations_are_read_only() -> None:
    paths = {
        "/session": {"post": {"x-safe": True}, "delete": {}},
        "/next": {"get": {"x-safe": False}, "head": {}},
    }
    app = parse_document("mail", {**PLAIN, "paths": paths})
    assert [each.name for each in app.operations.values() if each.safe] == ["post_session", "head_next"]
    with pytest.raises(ApiDocumentError, match="POST /a: `x-safe` is true or false, not 'yes'"):
        parse_document("mail", {**PLAIN, "paths": {"/a": {"post": {"x-safe": "yes"}}}})


def test_a_cycle_is_cut_at_a_depth_and_reduced_to_its_type() -> None:
    schema, depth = shop().operations["get_order"].returns, 0
    while "parent" in schema.get("properties", {}):
        schema, depth = schema["properties"]["parent"], depth + 1
    assert 4 <= depth <= 20


def test_schemas_that_only_reference_each_other_accept_anything() -> None:
    schemas = {"A": _named("B"), "B": _named("A")}
    paths = {"/x": {"post": {"requestBody": {"content": {"application/json": {"schema": _named("A")}}}}}}
    document = {**PLAIN, "components": {"schemas": schemas}, "paths": paths}
    assert parse_document("mail", document).operations["post_x"].parameters[0].schema == {}


def _named(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def test_other_bodies_are_one_argument() -> None:
    def body(content: Json) -> App:
        return parse_document("mail", {**PLAIN, "paths": {"/x": {"post": {"requestBody": {"content": content}}}}})

    listed = body({"text/xml": {}, "application/json": {"schema": {"type": "array"}}}).operations["post_x"]
    assert (listed.body_type, listed.parameters[0].name) == ("application/json", "body")
    assert body({"image/png": {}}).operations["post_x"].body_type == "image/png"
    choice = {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "string"}]}
    assert body({"application/json": {"schema": choice}}).operations["post_x"].parameters[0].schema == {
        "anyOf": choice["oneOf"]
    }
    form = body({"multipart/form-data": {"schema": {"properties": {"a": {"type": "string"}}}}}).operations[
        "post_x"
    ]
    assert (form.body_type, form.body_is_object, form.parameters[0].name) == ("multipart/form-data", True, "a")


def test_names_become_unique_python_identifiers() -> None:
    paths = {
        "/a": {"get": {"operationId": "listMails"}, "post": {"operationId": "list_mails"}},
        "/b": {"get": {"operationId": "class"}, "post": {"operationId": "2nd"}, "put": {"operationId": "邮件"}},
    }
    names = list(parse_document("mail", {**PLAIN, "paths": paths}).operations)
    assert names == ["list_mails", "list_mails_2", "class_", "op_2nd", "put_b"]


def test_a_relative_server_is_resolved_against_the_source() -> None:
    document = {**PLAIN, "servers": [{"url": "../v2/{world}"}]}
    app = parse_document("mail", document, source="https://docs.test/mail/openapi.json")
    assert app.server == "https://docs.test/v2/{world}"
    nowhere = {name: value for name, value in PLAIN.items() if name != "servers"}
    assert (
        parse_document("mail", nowhere, source="https://docs.test/mail/openapi.json").server == "https://docs.test"
    )
    assert parse_document("mail", nowhere, server="http://here.test/x/").server == "http://here.test/x"
    with pytest.raises(ApiDocumentError, match="give the server's URL"):
        parse_document("mail", nowhere, source="/tmp/openapi.json")


def test_an_operation_may_have_another_server() -> None:
    operation = {"operationId": "upload", "servers": [{"url": "http://files.test/"}]}
    document = {**PLAIN, "paths": {"/up": {"post": operation}}}
    assert parse_document("mail", document).operations["upload"].server == "http://files.test/"
    assert parse_document("mail", document, server="http://x.test").operations["upload"].server is None


@pytest.mark.parametrize("level", ["operation", "path"])
def test_the_server_of_an_operation_has_variables_of_its_own(level: str) -> None:
    def at(given: dict[str, str], **root: Json) -> str:
        url = "https://{region}.up.test/{version}"
        own = {"servers": [{"url": url, "variables": {"region": {"default": "eu"}, "version": {"default": 2}}}]}
        item = {"post": own} if level == "operation" else {"post": {}, **own}
        servers = [{"url": "https://{region}.a.test", "variables": root}]
        app = parse_document("mail", {**PLAIN, "servers": servers, "paths": {"/x": item}})
        return address(app, app.operations["post_x"].server or "", given)

    assert at({}) == "https://eu.up.test/2"
    assert at({}, region={"default": "us"}) == "https://eu.up.test/2"
    shared = {"region": {"default": "eu", "enum": ["eu", "ap"]}}
    assert [at(given, **shared) for given in ({}, {"region": "ap"})] == [
        "https://eu.up.test/2", "https://ap.up.test/2",
    ]  # fmt: skip


def test_keywords_unknown_to_json_schema_are_left_to_the_server() -> None:
    odd = {"type": "file", "pattern": "(?<!a", "minLength": "3", "required": True, "enum": "a", "example": 1}
    parameter = {"name": "a", "in": "query", "schema": odd}
    document = {**PLAIN, "paths": {"/x": {"get": {"parameters": [parameter]}}}}
    assert parse_document("mail", document).operations["get_x"].parameters[0].schema == {}


def test_binary_fields_of_a_form_are_sent_as_files_of_text() -> None:
    fields = {"note": {"type": "string"}, "scan": {"type": "string", "format": "binary"}}
    content = {"multipart/form-data": {"schema": {"type": "object", "properties": fields}}}
    app = parse_document("mail", {**PLAIN, "paths": {"/x": {"post": {"requestBody": {"content": content}}}}})
    request = encode(app, app.operations["post_x"], {"note": "é", "scan": "abc"})
    boundary = request.headers["Content-Type"].removeprefix("multipart/form-data; boundary=")
    assert (request.content or b"").decode().split(f"--{boundary}") == [
        "",
        '\r\nContent-Disposition: form-data; name="note"\r\n\r\né\r\n',
        '\r\nContent-Disposition: form-data; name="scan"; filename="scan"\r\n'
        "Content-Type: application/octet-stream\r\n\r\nabc\r\n",
        "--\r\n",
    ]
    assert encode(app, app.operations["post_x"], {"note": []}).content == b"", "a form of no parts"


def test_structures_in_a_form_are_parts_of_json_and_the_document_may_name_other_types() -> None:
    fields = {name: {"type": kind} for name, kind in (("who", "object"), ("rows", "string"), ("any", "string"))}
    encoding = {"rows": {"contentType": "text/csv"}, "any": {"contentType": "text/plain,image/png"}}
    media = {"schema": {"type": "object", "properties": fields}, "encoding": encoding}
    body = {"content": {"multipart/form-data": media}}
    app = parse_document("mail", {**PLAIN, "paths": {"/x": {"post": {"requestBody": body}}}})
    given = {"who": {"name": "Ann"}, "rows": "a,b", "any": "c"}
    request = encode(app, app.operations["post_x"], given)
    boundary = request.headers["Content-Type"].removeprefix("multipart/form-data; boundary=")
    assert (request.content or b"").decode().split(f"--{boundary}") == [
        "",
        '\r\nContent-Disposition: form-data; name="who"\r\n'
        'Content-Type: application/json\r\n\r\n{"name":"Ann"}\r\n',
        '\r\nContent-Disposition: form-data; name="rows"\r\nContent-Type: text/csv\r\n\r\na,b\r\n',
        '\r\nContent-Disposition: form-data; name="any"\r\n\r\nc\r\n',
        "--\r\n",
    ]


def test_a_thousand_operations_over_entangled_schemas_parse_in_seconds() -> None:
    def fields(first: int) -> Json:
        return {f"f{i}": _named(f"S{i * 7 % 200}") for i in range(first, first + 6)}

    schemas = {f"S{i}": {"type": "object", "properties": fields(i)} for i in range(200)}
    body = {"content": {"application/json": {"schema": _named("S1")}}}
    paths = {f"/p{i}": {"post": {"operationId": f"post{i}", "requestBody": body}} for i in range(1000)}
    with within():
        app = parse_document("mail", {**PLAIN, "paths": paths, "components": {"schemas": schemas}})
        assert len(app.operations) == 1000


async def test_a_document_that_was_stored_gives_the_same_signatures(session: AsyncSession) -> None:
    project = await projects.create(session, "shop")
    document = read_document(SHOP)
    await apis.put(session, project.id, "shop", source="upload", document=document, digest="")
    row = await apis.get(session, project.id, "shop")
    await session.refresh(row)
    stored = parse_document("shop", row.document)
    assert [signature(each) for each in stored.operations.values()] == [
        signature(each) for each in shop().operations.values()
    ]


def in_3_2(node: Json) -> Operation:
    made = {**PLAIN, "openapi": "3.2.0", "paths": {"/x": {"get": node}}}
    return parse_document("mail", made).operations["get_x"]


def test_a_whole_query_is_one_argument() -> None:
    def query(media_type: str, schema: Json, value: Json) -> str:
        content = {media_type: {"schema": schema}}
        entry = {"name": "query", "in": "querystring", "required": True, "content": content}
        operation = in_3_2({"parameters": [entry]})
        return OPENAPI.encode(operation, bind(operation, [value], {})).target

    fields = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
    form = "application/x-www-form-urlencoded"
    assert query(form, fields, {"a": "x y", "b": [1, 2], "c": None}) == "/x?a=x+y&b=1&b=2"
    assert query("application/json", fields, {"a": "x"}) == "/x?%7B%22a%22%3A%22x%22%7D"
    assert query("application/jsonpath", {"type": "string"}, "$.a[?(@.b)]") == "/x?%24.a%5B%3F%28%40.b%29%5D"


def test_the_items_of_a_stream_are_described() -> None:
    item = {"type": "object", "properties": {"data": {"type": "string"}}}

    def returned(media_type: str) -> Json:
        return in_3_2({"responses": {"200": {"content": {media_type: {"itemSchema": item}}}}}).returns

    assert returned("text/event-stream") == {"type": "array", "items": item}
    assert returned("application/jsonl") == {"type": "string"}
