"""Signatures of operations with many optional arguments and fields: one page of them has what a task needs."""

from typing import Any

import pytest

from app.apis.api_docs import SIGNATURE_CHARS, show_signatures
from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.apis.presentation import Presentation, present
from app.apis.short_signature import SignatureWords, short_signature
from tests.document_parts import answer, body, openapi

FIELDS = sorted([*(f"filter_{part}_setting" for part in "abcdefghijklmnopqrstuvwxyz"), "paused", "title", "url"])
FIELDS += [f"webhook_{number}_target" for number in range(40)]
KINDS = ("watch", "tag", "page", "group", "robot", "sensor")
NOTE = "[...: more, which show_api_doc(app_name='t', api_name=...) shows]"


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
    shown = show_signatures(wide(KINDS[:4]), "t", instruction='Pause the page with the title "Cheese".')
    *lines, note = shown.splitlines()
    assert note == NOTE
    assert len(lines) == 20
    assert len(shown) <= SIGNATURE_CHARS + len(NOTE) + 1
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
    assert name not in line_of(show_signatures(wide(), "t"), "get_page")
    assert name in line_of(show_signatures(wide(), "t", instruction=instruction), "get_page")


def test_what_any_operation_requires_comes_before_other_fields() -> None:
    words = SignatureWords(wide().apps["t"], "")
    assert sorted(["filter", "paused", "url"], key=words.rank) == ["url", "filter", "paused"]


def test_signatures_that_fit_are_whole_whatever_the_task() -> None:
    catalog = wide(KINDS[:3], FIELDS[-10:])
    whole = show_signatures(catalog, "t")
    assert show_signatures(catalog, "t", instruction="Set webhook 31 target of it") == whole
    assert "..." not in whole
    assert all(name in line_of(whole, "get_tag") for name in FIELDS[-10:])


def test_more_operations_than_fit_are_on_further_pages() -> None:
    catalog = wide(tuple(f"thing{number}" for number in range(40)))
    seen: list[str] = []
    while len(seen) < 200:
        shown = show_signatures(catalog, "t", len(seen)).splitlines()
        assert NOTE in shown
        seen += [line.partition("(")[0] for line in shown if not line.startswith("[")]
        assert shown[-1].startswith(f"[{len(seen)} of 200 operations; ") or len(seen) == 200
    assert seen == list(catalog.apps["t"].operations)


def test_a_form_shows_the_fields_that_the_task_names() -> None:
    shown = show_signatures(wide(readable=True), "t", instruction="How many watches are paused?")
    assert "paused, " in line_of(shown, "list_watchs")
    assert len(shown) <= SIGNATURE_CHARS + len(NOTE) + 1


@pytest.mark.parametrize("limit", [40, 100, 320, 900])
@pytest.mark.parametrize("readable", [False, True])
def test_a_short_signature_takes_no_more_than_its_limit(limit: int, readable: bool) -> None:
    app = wide(summary="a long story " * 40, readable=readable).apps["t"]
    for operation in app.operations.values():
        line = short_signature(operation, limit, SignatureWords(app, "pause it"), typed=readable)
        assert len(line) <= limit
        assert limit < 900 or "paused" in line or "delete" in line
