"""Lists of a double: what their parameters choose, in which order, and page after page."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from app.apis.catalog import Operation
from app.apis.double.model import read_model
from app.apis.double.service import Answer, Double
from app.apis.pagination import next_page
from app.base.values import Json
from tests.support.double_documents import answer, document, query
from tests.support.every_row import every_row

_TIME: dict[str, Json] = {"type": "string", "format": "date-time"}
_FIELDS: dict[str, Json] = {
    "id": {"type": "integer"},
    "title": {"type": "string"},
    "status": {"type": "string", "enum": ["open", "closed", "on hold"]},
    "is_public": {"type": "boolean"},
    "price": {"type": "number"},
    "project_id": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "created_at": _TIME,
}
_NOTE: dict[str, Json] = {"type": "object", "properties": _FIELDS}
_ROWS: list[dict[str, Json]] = [
    {"id": 1, "title": "Green tea", "status": "open", "is_public": True, "price": 4, "project_id": 7,
     "tags": ["a", "b"], "created_at": "2026-01-05T10:00:00Z"},
    {"id": 2, "title": "Black tea", "status": "closed", "is_public": False, "price": 9.5, "project_id": 7,
     "tags": [], "created_at": "2026-03-05T10:00:00Z"},
    {"id": 3, "title": "Coffee", "status": "on hold", "is_public": True, "price": 12, "project_id": 8,
     "tags": ["b"], "created_at": "2026-02-05T10:00:00Z"},
]  # fmt: skip


def double(
    parameters: list[dict[str, Json]], schema: Json = None, rows: list[dict[str, Json]] | None = None
) -> Double:
    """A list of notes with these parameters, and these records."""
    listed = schema or {"type": "array", "items": _NOTE}
    paths = {
        "/notes": {
            "get": {"operationId": "listNotes", "parameters": parameters, "responses": {"200": answer(listed)}}
        }
    }
    made = Double(read_model("desk", document(paths)), "seed")
    [keyed] = made.state.records.values()
    template = next(iter(keyed.values()))
    keyed.clear()
    for row in _ROWS if rows is None else rows:
        keyed[(str(row["id"]),)] = type(template)(str(row["id"]), (), dict(row))
    return made


def test_a_parameter_chooses_by_the_field_that_its_name_tells() -> None:
    day: dict[str, Json] = {"format": "date-time"}
    rows: list[tuple[dict[str, Json], str, list[int]]] = [
        (query("status"), "open", [1]),
        (query("status"), "open,closed", [1, 2]),
        (query("filter[status]"), "on hold", [3]),
        (query("status__ne"), "open", [2, 3]),
        (query("project"), "7", [1, 2]),
        (query("projectId", type="integer"), "8", [3]),
        (query("public", type="boolean"), "false", [2]),
        (query("is_public", type="boolean"), "true", [1, 3]),
        (query("tag"), "b", [1, 3]),
        (query("q"), "TEA", [1, 2]),
        (query("search"), "tea green", [1]),
        (query("title__icontains"), "coff", [3]),
        (query("min_price", type="number"), "9.5", [2, 3]),
        (query("price_lt", type="number"), "9.5", [1]),
        (query("max_price", type="integer"), "9", [1]),
        (query("created_after", **day), "2026-02-05T10:00:00Z", [2]),
        (query("created_at_gte", **day), "2026-02-05T10:00:00Z", [2, 3]),
        (query("since", **day), "2026-02-01T00:00:00Z", [2, 3]),
        (query("until", format="date"), "2026-02-01", [1]),
        (query("ids"), "1,3", [1, 3]),
        (query("sort"), "price", [1, 2, 3]),
        (query("sort"), "-price", [3, 2, 1]),
        (query("sort_by"), "title:desc", [1, 3, 2]),
        (query("order_by"), "created_at desc", [2, 3, 1]),
        (query("sort"), "project_id,-price", [2, 1, 3]),
        (query("sort"), "createdAt,desc", [2, 3, 1]),
        (query("verbose"), "x", [1, 2, 3]),
    ]
    with every_row() as row:
        for parameter, value, ids in rows:
            with row(parameter["name"], value):
                made = double([parameter])
                given = made.respond("GET", "/notes", urlencode({parameter["name"]: value}))
                assert [each["id"] for each in given.value] == ids


def test_a_direction_turns_the_order_around_and_what_is_not_known_is_named() -> None:
    made = double([query("sort"), query("order", enum=["asc", "desc"]), query("expand")])
    assert [each["id"] for each in made.respond("GET", "/notes", "sort=price&order=desc").value] == [3, 2, 1]
    [listing] = made.model.operations.values()
    assert listing.ignored == ("expand",)


_PAGED: Mapping[str, tuple[list[dict[str, Json]], dict[str, Json]]] = {
    "pages of a bare list": (
        [query("page", type="integer", default=1), query("per_page", type="integer", default=4)],
        {},
    ),
    "pages from 0": (
        [query("page", type="integer", default=0), query("size", type="integer", default=4)],
        {"totalPages": {"type": "integer"}},
    ),
    "offsets and a total": (
        [query("offset", type="integer"), query("limit", type="integer", default=4)],
        {"total": {"type": "integer"}},
    ),
    "a link in the body": (
        [query("offset", type="integer"), query("limit", type="integer", default=4)],
        {"next": {"type": "string", "format": "uri", "nullable": True}, "count": {"type": "integer"}},
    ),
    "a cursor": (
        [query("cursor"), query("limit", type="integer", default=4)],
        {"meta": {"type": "object", "properties": {"next_cursor": {"type": "string"}}}},
    ),
    "a cursor of a bare list": ([query("after"), query("limit", type="integer", default=4)], {}),
    "the last key": (
        [query("starting_after"), query("limit", type="integer", default=4)],
        {"has_more": {"type": "boolean"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _PAGED)
def test_page_after_page_gives_every_record_once(name: str) -> None:
    """As the product itself reads pages."""
    parameters, around = _PAGED[name]
    listed: Json = {"type": "array", "items": _NOTE}
    schema = {"type": "object", "properties": {"items": listed, **around}} if around else listed
    made = double(parameters, schema, [{"id": number, "title": f"note {number}"} for number in range(1, 12)])
    [operation] = made.model.app.operations.values()
    found: list[int] = []
    arguments: dict[str, Any] = {}
    for _ in range(5):
        given = made.respond("GET", "/notes", urlencode(arguments))
        rows = given.value["items"] if around else given.value
        found += [each["id"] for each in rows]
        following = _next(operation, arguments, given)
        if following is None:
            break
        arguments |= following
    assert found == list(range(1, 12))


def _next(operation: Operation, arguments: Mapping[str, Json], given: Answer) -> dict[str, Json] | None:
    headers = {name.lower(): value for name, value in given.headers.items()}
    found = next_page(operation, arguments, given.value, headers, "https://desk.test/api/notes")
    assert not isinstance(found, str), found
    return found


def test_totals_and_numbers_of_pages_are_those_of_the_records() -> None:
    around = {"total": {"type": "integer"}, "total_pages": {"type": "integer"}, "page": {"type": "integer"}}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": _NOTE}, **around}}
    parameters = [query("page", type="integer"), query("limit", type="integer"), query("status")]
    made = double(parameters, schema)
    assert _around(made.respond("GET", "/notes", "limit=2")) == {"total": 3, "total_pages": 2, "page": 1}
    assert _around(made.respond("GET", "/notes", "limit=2&page=2")) == {"total": 3, "total_pages": 2, "page": 2}
    assert _around(made.respond("GET", "/notes", "limit=2&status=open")) == {
        "total": 1,
        "total_pages": 1,
        "page": 1,
    }


def _around(given: Answer) -> dict[str, Json]:
    found: dict[str, Json] = json.loads(given.body)
    return {name: value for name, value in found.items() if name != "rows"}
