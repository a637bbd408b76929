"""The next page, where the answer names it by an address, or counts what there is."""

from collections.abc import Mapping

import pytest

from app.apis.api_documents import parse_document
from app.apis.pagination import next_page
from app.gateway.response_headers import passed_headers
from app.records import Json
from tests.document_parts import openapi

URL = "http://a.test/rows"


def after(value: Json, headers: Mapping[str, str] | None = None, *names: str, **arguments: Json) -> object:
    """What changes for the next page of an operation with these parameters in the query."""
    listed = [{"in": "query", "name": name, "schema": {"type": "integer"}} for name in names]
    operation = parse_document("t", openapi({"/rows": {"get": {"parameters": listed}}})).operations["get_rows"]
    return next_page(operation, arguments, value, headers or {}, URL)


@pytest.mark.parametrize(
    "value",
    [
        {"next": f"{URL}?offset=4&limit=2", "results": [1, 2]},
        {"next": "?offset=4", "results": [1, 2]},
        {"links": [{"rel": "prev", "href": f"{URL}?offset=0"}, {"rel": "next", "href": f"{URL}?offset=4"}]},
        {"links": {"next": "/rows?offset=4"}},
        {"_links": {"next": {"href": "/rows?offset=4"}}},
        {"meta": {"next": f"{URL}?offset=4"}},
    ],
)
def test_an_address_in_the_body_leads_to_the_next_page(value: Json) -> None:
    assert after(value, None, "offset", "limit", offset=2, limit=2) == {"offset": 4}


@pytest.mark.parametrize("value", [{"next": None, "results": [1, 2]}, {"links": {"next": None}, "data": [1, 2]}])
def test_no_address_where_one_would_be_is_the_last_page(value: Json) -> None:
    assert after(value, None, "offset", "limit", limit=2) is None


def test_an_address_at_another_server_is_none_for_the_server_counts_as_well() -> None:
    value = {"next": "http://inside.test/rows?offset=9", "results": [1, 2]}
    assert after(value, None, "offset", offset=2) == {"offset": 4}


def test_the_header_next_page_leads_on() -> None:
    headers = passed_headers([("Next-Page", f"{URL}?_token=ab&_limit=2"), ("Total-Objects", "7")])
    assert headers["total-objects"] == "7"
    assert after([1, 2], headers, "_limit", "_token", limit=2) == {"token": "ab"}


def test_links_are_not_the_items_of_a_page() -> None:
    value = {"features": [1, 2], "links": [{"rel": "self"}, {"rel": "prev"}, {"rel": "first"}], "numberMatched": 5}
    assert after(value, None, "offset", "limit", offset=2, limit=2) == {"offset": 4}
    assert after({**value, "features": [5]}, None, "offset", "limit", offset=4, limit=2) is None


def test_what_is_delivered_with_the_items_is_not_counted() -> None:
    value = {"data": [1, 2], "authors": [1, 2, 3, 4]}
    assert after(value, None, "offset") == {"offset": 2}
