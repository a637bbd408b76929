"""Documents that cannot be used are refused with the place and the reason; those that cannot be fetched, too."""

from typing import Any

import httpx
import pytest

from app.apis.documents.protocols import fetch_document, parse_document, read_document
from app.base.errors import ApiDocumentError
from app.base.values import Json
from tests.support.every_row import every_row

PLAIN: dict[str, Json] = {
    "openapi": "3.1.0",
    "info": {"title": "Mail"},
    "servers": [{"url": "http://mail.test/api/"}],
    "paths": {"/mails": {"get": {"operationId": "list_mails"}}},
}


def _unfolding(node: str) -> str:
    """Mappings that each hold the one before three times: 3 to the power of 40 in all."""
    return "\n".join(["a0: &a0 {}", *(f"a{n}: &a{n} {node.format(f'*a{n - 1}', n)}" for n in range(1, 41))])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<html></html>", "HTML"),
        ("{openapi: 1", "not valid JSON"),
        ("a: [1\nb: 2", "neither JSON nor YAML: line 2"),
        ("just words", "must be a mapping"),
        ("a: &a [*a, *a]", "repeat one another"),
        (_unfolding("{{x: {0}, y: {0}, z: {0}}}"), "repeat one another"),
        (_unfolding("{{<<: [{0}, {0}, {0}], k{1}: 1}}"), "repeat one another"),
        ("\n".join(["a0: &a0 []", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 300))]), "repeat one another"),
        ("a: !!binary aGk=", "a bytes"),
        ("[" * 100_000, "nested deeper than 200"),
    ],
)
def test_text_that_is_not_a_document_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ApiDocumentError, match=reason):
        read_document(text)


def test_aliases_and_merges_of_reasonable_size_are_plain_values() -> None:
    text = "a: &a {x: [1, null]}\nb: [*a, *a]\nc: {<<: *a, y: 2}"
    row = {"x": [1, None]}
    assert read_document(text) == {"a": row, "b": [row, row], "c": {"x": [1, None], "y": 2}}


INVALID: list[tuple[dict[str, Json], str]] = [
    ({"openapi": None, "swagger": "1.2"}, r"OpenAPI 1.2 is not supported; 2.0 \(Swagger\)"),
    ({"openapi": None}, r"of no known kind \(mcp, openapi\); an OpenAPI document has its version at the top"),
    ({"openapi": "4.0.0"}, "OpenAPI 4.0.0 is not supported"),
    ({"paths": {}}, "nothing to call"),
    ({"paths": {"/a": {}}}, "nothing to call"),
    ({"paths": {"/a": {"get": 3}}}, "GET /a: expected an object, found a int"),
    ({"paths": {"/a": {"get": {"parameters": [{"in": "query"}]}}}}, "GET /a: a parameter needs a name"),
    ({"paths": {"/a": {"$ref": "#/servers/x"}}}, "'#/servers/x' refers to something"),
    ({"paths": {"/a": {"$ref": "#/servers/7"}}}, "'#/servers/7' refers to something"),
    ({"x-n": 3, "paths": {"/a": {"$ref": "#/x-n/x"}}}, "'#/x-n/x' refers to something"),
    ({"paths": {"/a": {"$ref": "other.yaml#/a"}}}, "paths//a: 'other.yaml#/a' refers to another document"),
    ({"paths": {"/a": {"$ref": "#/paths/~1a"}}}, "leads back to itself"),
    (
        {"paths": {"/a": {"post": {"requestBody": {"content": {"text/plain": 1}}}}}},
        "POST /a body: expected an",
    ),
    ({"servers": [{}]}, "servers/0"),
    ({"servers": [{"url": "ftp://mail.test"}]}, "not an http"),
]


def test_an_invalid_document_is_refused_with_the_place_and_reason() -> None:
    with every_row() as row:
        for change, reason in INVALID:
            with row(change, reason), pytest.raises(ApiDocumentError, match=reason):
                parse_document(
                    "mail", {name: value for name, value in {**PLAIN, **change}.items() if value is not None}
                )


@pytest.mark.parametrize("name", ["api_docs", "my-mail", "1mail", "", "_x"])
def test_the_name_of_an_app_must_be_a_free_identifier(name: str) -> None:
    with pytest.raises(ApiDocumentError, match="app"):
        parse_document(name, PLAIN)


async def test_a_document_is_fetched_from_a_url() -> None:
    async def site(scope: Any, _receive: Any, send: Any) -> None:
        status = 200 if scope["path"] == "/mail.yaml" else 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"openapi: 3.1.0"})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(site)) as client:
        assert await fetch_document(client, "http://mail.test/mail.yaml") == {"openapi": "3.1.0"}
        with pytest.raises(ApiDocumentError, match="status 404"):
            await fetch_document(client, "http://mail.test/x")
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(ApiDocumentError, match="cannot be reached"):
            await fetch_document(client, "http://127.0.0.1:9/openapi.json")
