"""Signatures of operations with many optional arguments and fields: one page of them has what a task needs."""

from typing import Any

import pytest

from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.apis.listing import SignatureWords, short_signature
from app.apis.look_ups import Room, show_signatures
from app.apis.presentation import Presentation, present
from tests.support.document_parts import answer, body, openapi

FIELDS = sorted([*(f"filter_{part}_setting" for part in "abcdefghijklmnopqrstuvwxyz"), "paused", "title", "url"])
FIELDS += [f"webhook_{number}_target" for number in range(40)]
KINDS = ("watch", "tag", "page", "group", "robot", "sensor")
CHARS = 5_400
NOTE = "[...: apis.api_docs.show_api_doc('t', api_name=...) shows more of one]"


def wide(
    kinds: tuple[str, ...] = KINDS, fields: list[str] = FIELDS, summary: str = "", *, readable: bool = False
) -> Catalog:
    """An app with five operations for each kind, most of which take or return all the fields."""
    row = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    paths: dict[str, Any] = {}
    for kind in kinds:
        one = [{"name": "uuid", "in": "path", "required": True, "schema": {"type": "string"}}]
        listed = {"operationId": f"list_{kind}s", **answer({"type": "object", "additionalProperties": row})}
        create = {"operationId": f"create_{kind}", **body({**row, "required": ["url"]}), **answer(row)}
        paths[f"/{kind}"] = {"get": listed, "post": create}
        update = {"operationId": f"update_{kind}", "parameters": one, **body(row)}
        delete = {"operationId": f"delete_{kind}", "parameters": one}
        show = {"operationId": f"get_{kind}", "parameters": one, **answer(row)}
        paths[f"/{kind}/{{uuid}}"] = {"put": update, "delete": delete, "get": show}
    for operations in paths.values():
        for each in operations.values():
            each["summary"] = summary
    app = parse_document("t", openapi(paths))
    return Catalog({"t": present(app, Presentation(naming="readable")) if readable else app})


def line_of(shown: str, name: str) -> str:
    return next(line for line in shown.splitlines() if line.startswith(f"{name}("))


def test_all_operations_fit_on_a_page_and_show_what_the_task_names() -> None:
    shown = show_signatures(wide(KINDS[:4]), "t", room=Room(CHARS, 'Pause the page with the title "Cheese".'))
    *lines, note = shown.splitlines()
    assert note == NOTE
    assert len(lines) == 20
    assert len(shown) <= CHARS + len(NOTE) + 1
    update = line_of(shown, "update_page")
    assert update.startswith("update_page(uuid, ")
    assert "paused=None" in update
    assert "title=None" in update
    assert update.endswith(", ...)")
    listed = line_of(shown, "list_pages")
    assert listed.startswith("list_pages() -> map of ")
    assert listed.endswith(", ...")
    assert {"paused", "title", "url"} <= set(listed.removeprefix("list_pages() -> map of ").split(", "))
    assert line_of(shown, "delete_page") == "delete_page(uuid)"


@pytest.mark.parametrize(
    ("instruction", "name"),
    [("Set filter q setting of it", "filter_q_setting"), ("What is its webhook 31 target?", "webhook_31_target")],
)
def test_a_field_is_shown_first_if_the_task_names_it(instruction: str, name: str) -> None:
    assert name not in line_of(show_signatures(wide(), "t", room=Room(CHARS)), "get_page")
    assert name in line_of(show_signatures(wide(), "t", room=Room(CHARS, instruction)), "get_page")


def test_what_any_operation_requires_comes_before_other_fields() -> None:
    words = SignatureWords(wide().apps["t"], "")
    assert sorted(["filter", "paused", "url"], key=words.rank) == ["url", "filter", "paused"]


def test_signatures_that_fit_are_whole_whatever_the_task() -> None:
    catalog = wide(KINDS[:3], FIELDS[-10:])
    whole = show_signatures(catalog, "t", room=Room(CHARS))
    assert show_signatures(catalog, "t", room=Room(CHARS, "Set webhook 31 target of it")) == whole
    assert "..." not in whole
    assert all(name in line_of(whole, "get_tag") for name in FIELDS[-10:])


@pytest.mark.parametrize("chars", [300, 2_000, 5_400])
def test_what_does_not_fit_is_on_further_pages_and_each_says_the_call_of_the_next(chars: int) -> None:
    catalog = wide(tuple(f"thing{number}" for number in range(15)))
    room, page, seen = Room(chars, "Pause thing 7."), 1, list[str]()
    while len(seen) < 75:
        shown = show_signatures(catalog, "t", page, room=room)
        assert len(shown) <= chars
        *lines, last = shown.splitlines()
        seen += [line.partition("(")[0] for line in [*lines, last] if not line.startswith("[")]
        page += 1
        more = f"[{75 - len(seen)} more: apis.api_docs.show_signatures('t', page={page})]"
        assert last == more or len(seen) == 75
    assert sorted(seen) == sorted(catalog.apps["t"].operations)


def test_twelve_operations_fit_even_in_little_room_and_the_likeliest_are_among_them() -> None:
    shown = show_signatures(wide(), "t", room=Room(2_000, "Delete the robot named Ada."))
    *lines, cut, more = shown.splitlines()
    assert len(shown) <= 2_000
    assert len(lines) == 12
    assert lines[0].startswith("delete_robot(uuid)")
    assert any(line.startswith("list_robots(") for line in lines)
    assert cut == NOTE
    assert more == "[18 more: apis.api_docs.show_signatures('t', page=2)]"


def test_a_form_shows_the_fields_that_the_task_names() -> None:
    shown = show_signatures(wide(readable=True), "t", room=Room(CHARS, "How many watches are paused?"))
    assert "paused, " in line_of(shown, "list_watchs")
    assert len(shown) <= CHARS + len(NOTE) + 1


@pytest.mark.parametrize("limit", [40, 100, 320, 900])
@pytest.mark.parametrize("readable", [False, True])
def test_a_short_signature_takes_no_more_than_its_limit(limit: int, readable: bool) -> None:
    app = wide(summary="a long story " * 40, readable=readable).apps["t"]
    for operation in app.operations.values():
        line = short_signature(operation, limit, SignatureWords(app, "pause it"), typed=readable)
        assert len(line) <= limit
        assert limit < 900 or "paused" in line or "delete" in line
