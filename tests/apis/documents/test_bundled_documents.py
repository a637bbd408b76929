"""Documents that refer to others of their own origin are stored as one; references elsewhere accept any value."""

import json
from collections.abc import Awaitable, Callable

import pytest

from app.apis.documents.protocols import parse_document
from app.apis.documents.read_process import ReadRequest, wanted
from app.apis.documents.reader import DocumentReader
from app.base.errors import ApiDocumentError
from app.base.values import Json
from tests.support.document_parts import answer, body, openapi

SOURCE = "http://a.test/api/openapi.json"
PATHS: dict[str, Json] = {
    "/mails": {"$ref": "paths.yaml#/mails"},
    "/notes": {"get": {"operationId": "notes", **answer({"$ref": "http://elsewhere.test/x.json#/Note"})}},
    "/files": {"post": {"operationId": "add", **body({"$ref": "gone.yaml#/File"})}},
}
OTHERS = {
    "http://a.test/api/paths.yaml": """
mails:
  get:
    operationId: mails
    parameters: [{$ref: '#/page'}]
    responses: {200: {content: {application/json: {schema: {$ref: 'schemas/mail.json'}}}}}
page: {name: page, in: query, schema: {type: integer}}
""",
    "http://a.test/api/schemas/mail.json": """{
"type": "object",
"properties": {"reply": {"$ref": "mail.json"}, "to": {"$ref": "../openapi.json#/components/schemas/Person"}}
}""",
}


def site(fetched: list[str]) -> Callable[[str], Awaitable[bytes]]:
    async def fetch(url: str) -> bytes:
        fetched.append(url)
        if url not in OTHERS:
            raise ApiDocumentError(f"{url} answered with status 404 instead of a document")
        return OTHERS[url].encode()

    return fetch


async def stored(document: Json, fetched: list[str], source: str | None = SOURCE) -> dict[str, Json]:
    async with DocumentReader() as reader:
        request = ReadRequest(name="t", source=source)
        _, text = await reader.read(request, json.dumps(document).encode(), site(fetched))
    found: dict[str, Json] = json.loads(text)
    return found


async def test_other_documents_of_the_same_origin_become_part_of_it() -> None:
    fetched: list[str] = []
    document = openapi(PATHS, Person={"type": "string"})
    app = parse_document("t", await stored(document, fetched), source=SOURCE)
    assert fetched == [f"http://a.test/api/{name}" for name in ("gone.yaml", "paths.yaml", "schemas/mail.json")]
    assert app.left_out == ()
    mails = app.operations["mails"]
    assert [each.name for each in mails.parameters] == ["page"]
    assert mails.returns["properties"]["to"] == {"type": "string"}
    assert mails.returns["properties"]["reply"]["properties"]["to"] == {"type": "string"}
    assert app.operations["notes"].returns == {}, "another origin"
    assert app.operations["add"].parameters[0].schema == {}, "it cannot be fetched"


def test_the_default_port_is_the_same_origin() -> None:
    references = [f"http://{place}/x.json" for place in ("a.test:80", "A.test", "a.test:81", "b.test")]
    document: dict[str, Json] = {"x": [{"$ref": f"{each}#/y"} for each in references]}
    assert wanted(document, SOURCE, {}) == sorted(references[:2])


async def test_a_document_that_is_uploaded_refers_to_nothing_else() -> None:
    fetched: list[str] = []
    app = parse_document("t", await stored(openapi(PATHS), fetched, source=None))
    assert fetched == []
    assert [each.operation for each in app.left_out] == ["/mails"]


async def test_a_chain_of_documents_without_end_is_refused() -> None:
    async def fetch(url: str) -> bytes:
        number = int(url.rpartition("/")[2])
        return json.dumps({"x": {"$ref": f"{number + 1}#/x"}}).encode()

    async with DocumentReader() as reader:
        document = json.dumps(openapi({"/x": {"$ref": "1#/x"}})).encode()
        with pytest.raises(ApiDocumentError, match="it refers to more than 50 other documents"):
            await reader.read(ReadRequest(name="t", source="http://a.test/0"), document, fetch)
