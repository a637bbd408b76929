"""The next page, where the answer names it by an address, or counts what there is."""

from collections.abc import Mapping

import pytest

from app.apis.calls.http_call import passed_headers
from app.apis.documents.protocols import parse_document
from app.apis.pagination import next_page
from app.base.values import Json
from tests.support.document_parts import openapi
from tests.support.every_row import every_row

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


@pytest.mark.parametrize("rel", ["describedby", "preload", "https://api.w.org/", "self"])
def test_a_link_that_is_not_about_pages_does_not_end_them(rel: str) -> None:
    headers = {"link": f'<{URL}>; rel="{rel}"'}
    assert after([1, 2], headers, "offset") == {"offset": 2}
    assert after([1, 2], {"link": f'{headers["link"]}, <{URL}?offset=0>; rel="prev"'}, "offset") is None


def test_arguments_out_of_an_address_have_the_types_of_their_parameters() -> None:
    kinds = {"archived": "boolean", "size": "number", "name": "string", "page": "integer"}
    listed = [{"in": "query", "name": name, "schema": {"type": kind}} for name, kind in kinds.items()]
    operation = parse_document("t", openapi({"/rows": {"get": {"parameters": listed}}})).operations["get_rows"]
    given = {"archived": True, "size": 1.5, "name": "true"}
    headers = {"link": f'<{URL}?archived=true&size=1.5&name=true&page=2>; rel="next"'}
    assert next_page(operation, given, [1], headers, URL) == {"page": 2}
    assert next_page(operation, {}, [1], headers, URL) == {**given, "page": 2}


def test_a_broken_address_ends_the_pages_and_no_more() -> None:
    assert after([1], {"link": '<http://[x>; rel="next"'}, "page") == "the address of the next page is none"
    assert after({"next": "http://[x", "rows": [1]}, None, "page") == {"page": 2}
    assert after({"next_cursor": "a://[", "rows": [1]}, None, "cursor") == {"cursor": "a://["}


@pytest.mark.parametrize(("given", "following"), [("0", {"offset": 2}), ("4", {"offset": 6}), ([0], None)])
def test_an_offset_whose_default_is_no_number_breaks_no_call(given: Json, following: Json) -> None:
    listed = [{"in": "query", "name": "offset", "schema": {"type": "integer", "default": given}}]
    operation = parse_document("t", openapi({"/rows": {"get": {"parameters": listed}}})).operations["get_rows"]
    assert next_page(operation, {}, [1, 2], {}, URL) == following


def test_links_are_not_the_items_of_a_page() -> None:
    value = {"features": [1, 2], "links": [{"rel": "self"}, {"rel": "prev"}, {"rel": "first"}], "numberMatched": 5}
    assert after(value, None, "offset", "limit", offset=2, limit=2) == {"offset": 4}
    assert after({**value, "features": [5]}, None, "offset", "limit", offset=4, limit=2) is None


def test_what_is_delivered_with_the_items_is_not_counted() -> None:
    value = {"data": [1, 2], "authors": [1, 2, 3, 4]}
    assert after(value, None, "offset") == {"offset": 2}


_FIRST_NUMBERS: list[tuple[str, dict[str, Json], int]] = [
    ("startIndex", {}, 1),
    ("startIndex", {"default": 1}, 1),
    ("start", {"default": 1, "minimum": 0}, 1),
    ("offset", {"minimum": 1}, 1),
    ("startIndex", {"minimum": 0}, 0),
    ("startIndex", {"default": 0}, 0),
    ("startAt", {}, 0),
]


def test_each_item_comes_once_whatever_number_the_first_has() -> None:
    with every_row() as row:
        for total in (199, 200, 201):
            for name, schema, base in _FIRST_NUMBERS:
                with row(total, name, schema, base):
                    listed = [{"in": "query", "name": name, "schema": {"type": "integer", **schema}}]
                    operation = parse_document(
                        "t", openapi({"/rows": {"get": {"parameters": listed}}})
                    ).operations["get_rows"]
                    argument, rows = operation.parameters[0].name, list(range(total))
                    changed: Json = {}
                    got: list[Json] = []
                    while isinstance(changed, dict):
                        start = changed.get(argument, base) - base
                        page = rows[start : start + 100]
                        assert page, "the end is past"
                        got += page
                        changed = next_page(
                            operation, changed, {"totalResults": total, "Resources": page}, {}, URL
                        )
                    assert got == rows


@pytest.mark.parametrize(
    ("schema", "first"),
    [({}, 1), ({"default": 0}, 0), ({"minimum": 0}, 0), ({"default": 1, "minimum": 0}, 1), ({"minimum": 1}, 1)],
)
@pytest.mark.parametrize("field", ["total_pages", "lastPage"])
def test_each_page_comes_once_whatever_number_the_first_has(
    schema: dict[str, Json], first: int, field: str
) -> None:
    listed = [{"in": "query", "name": "page", "schema": {"type": "integer", **schema}}]
    operation = parse_document("t", openapi({"/rows": {"get": {"parameters": listed}}})).operations["get_rows"]
    numbers, told = [first, first + 1, first + 2], 3 if field == "total_pages" else first + 2
    changed: Json = {}
    got: list[Json] = []
    while isinstance(changed, dict):
        got.append(changed.get("page", first))
        assert got[-1] in numbers, "the end is past"
        changed = next_page(operation, changed, {field: told, "items": [1, 2]}, {}, URL)
    assert got == numbers


@pytest.mark.parametrize("flag", ["has_more", "hasNextPage"])
def test_a_cursor_is_not_followed_past_the_end(flag: str) -> None:
    assert after({"data": [1], "cursor": "b", flag: False}, None, "cursor", cursor="a") is None
    assert after({"data": [1], "cursor": "b", flag: True}, None, "cursor", cursor="a") == {"cursor": "b"}
    assert after({"data": [1], "pageInfo": {"endCursor": "b", flag: False}}, None, "after") is None
