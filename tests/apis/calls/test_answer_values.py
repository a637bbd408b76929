"""What bodies become, as servers send them."""

import codecs
from typing import Any

import pytest

from app.apis.calls.http_call import ReadResponse, refusal, value_of
from app.base.errors import HostError
from app.base.values import Json


def answer(content_type: str, body: bytes, status: int = 200) -> ReadResponse:
    about: dict[str, Any] = {"status": status, "location": None, "headers": {}, "challenge": ""}
    return ReadResponse(content_type=content_type, body=body, **about)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", codecs.BOM_UTF8 + '{"a": "é"}'.encode()),
        ("application/json; charset=ISO-8859-1", '{"a": "é"}'.encode("latin-1")),
        ("application/json; charset=ISO-8859-1", '{"a": "é"}'.encode()),  # it is UTF-8, whatever is declared
        ("application/problem+json; charset=utf-16", '{"a": "é"}'.encode("utf-16")),
        ("text/json", '{"a": "é"}'.encode()),
        ("application/x-json", '{"a": "é"}'.encode()),
    ],
)
def test_json_is_decoded_as_old_servers_send_it(content_type: str, body: bytes) -> None:
    assert value_of(answer(content_type, body)) == {"a": "é"}
    assert refusal(answer(content_type, body, 400), str).response.body == {"a": "é"}


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=ascii"])
def test_what_is_not_the_json_that_it_claims_to_be_is_an_error(content_type: str) -> None:
    with pytest.raises(HostError, match="not the JSON it claims to be"):
        value_of(answer(content_type, b"\xff{}"))


@pytest.mark.parametrize(
    ("content_type", "body", "value"),
    [("text/json", b"OK", "OK"), ("text/csv", codecs.BOM_UTF8 + b"id,name", "id,name"), ("", b"{}", "{}")],
)
def test_other_text_stays_text(content_type: str, body: bytes, value: Json) -> None:
    assert value_of(answer(content_type, body)) == value
