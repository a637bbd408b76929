"""Searches for operations: which rule puts which operation first, on small documents."""

from time import process_time
from typing import Any

import pytest

from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document
from app.apis.look_ups import Room, search, show_api_descriptions, show_api_doc, show_signatures
from app.apis.presentation import Presentation, present
from tests.support.document_parts import answer, body, openapi
from tests.support.every_row import every_row


def app(*operations: str, **more: Any) -> App:
    """Operations as "METHOD path operationId: summary"."""
    paths: dict[str, Any] = {}
    for each in operations:
        place, _, summary = each.partition(": ")
        method, path, operation_id = place.split(" ")
        node = {"operationId": operation_id, "summary": summary, **more}
        paths.setdefault(path, {})[method.lower()] = node
    return present(parse_document("t", openapi(paths)), Presentation(naming="readable"))


def first(query: str, *operations: str) -> str:
    found = search(Catalog({"t": app(*operations)}), query)
    return str(found[0]["api_name"]) if found else ""


SEARCHES: list[tuple[str, tuple[str, ...], str]] = [
    # the words of a name count for more than those of a summary
    ("list flows", ("GET /a list_runs: of flows", "GET /b list_flows: all"), "list_flows"),
    # what an API calls "read" or "filter", a person lists
    ("list flows", ("POST /flows create_flow", "POST /flows/filter read_flows"), "read_flows"),
    ("remove a mail", ("GET /mails/{id} get_mail", "DELETE /mails/{id} delete_mail"), "delete_mail"),
    # "how many" counts
    ("how many flows are there", ("GET /flows list_flows", "POST /flows/count count_flows"), "count_flows"),
    # several, or one
    ("all devices", ("GET /devices/{id} get_device", "GET /devices list_devices"), "list_devices"),
    ("show one device", ("GET /devices list_devices", "GET /devices/{id} get_device"), "get_device"),
    # a name that says no more than the query
    ("create an issue", ("POST /a create_issue_comment", "POST /b create_issue"), "create_issue"),
    # the thing, not where it is
    ("the price of a product", ("GET /b/{id} get_product", "GET /a/{id} get_price"), "get_price"),
    # a verb that is known to no list
    (
        "comment on an issue",
        ("GET /c list_issue_comments", "POST /c create_issue_comment"),
        "create_issue_comment",
    ),
    ("start a run", ("DELETE /runs/{id} delete_run", "POST /runs/{id}/start start_run"), "start_run"),
    # words that begin alike, and misspelled ones
    ("create a repository", ("POST /repos create_repo", "POST /users create_user"), "create_repo"),
    (
        "list my depolyments",
        ("GET /users list_users", "GET /deployments list_deployments"),
        "list_deployments",
    ),
    # a word that is rare in the API says more
    (
        "state of the run",
        ("GET /a get_run", "GET /b get_run_log", "GET /c/{id}/state get_run_state"),
        "get_run_state",
    ),
]


def test_the_operation_that_is_meant_comes_first() -> None:
    with every_row() as row:
        for query, operations, name in SEARCHES:
            with row(query, operations, name):
                assert first(query, *operations) == name
                assert first(query, *reversed(operations)) == name


def test_nothing_is_found_for_what_an_api_does_not_have() -> None:
    assert first("pay a salary", "GET /mails list_mails: all mails") == ""
    assert first("", "GET /mails list_mails") == ""


def test_the_name_of_an_app_is_searched_too() -> None:
    mail, notes = (parse_document(name, openapi({"/x": {"get": {}}})) for name in ("mail", "notes"))
    catalog = Catalog({"mail": mail, "notes": notes})
    assert [each["app_name"] for each in search(catalog, "notes")] == ["notes"]


LARGE = [f"GET /things/{number}/parts list_parts_{number}: {'of a thing ' * 20}" for number in range(1_223)]


@pytest.mark.parametrize("chars", [2_000, 8_000])
def test_answers_about_a_large_document_fit_and_say_what_shows_the_rest(chars: int) -> None:
    catalog, room = Catalog({"t": app(*LARGE)}), Room(chars, "List the parts of thing 7.")
    *lines, rest = show_signatures(catalog, "t", room=room).splitlines()
    assert chars / 2 < len("\n".join([*lines, rest])) <= chars
    shown = [line for line in lines if line.startswith("list_parts_")]
    assert rest == f"[{1_223 - len(shown)} more: apis.api_docs.show_signatures('t', page=2)]"
    assert show_signatures(catalog, "t", 1_222, room=room) == ""
    *described, more = show_api_descriptions(catalog, "t", room=room)
    assert len(str([*described, more])) <= chars
    call = "apis.api_docs.show_api_descriptions('t', page=2)"
    assert more == {"name": "...", "description": f"{1_223 - len(described)} more: {call}"}
    found = search(catalog, "list parts of a thing", limit=1_000, room=room)
    assert len(str(found)) <= chars
    assert len(found) == 30 or found[-1]["description"].endswith(
        " more: apis.api_docs.search('list parts of a thing', limit=1000, page=2)"
    )


def test_a_large_document_is_indexed_once() -> None:
    """By the first search, which takes some twenty times as long as one that finds the index."""
    catalog = Catalog({"t": app(*LARGE)})

    def seconds() -> float:
        started = process_time()
        search(catalog, "list the parts of one thing")
        return process_time() - started

    first_search = seconds()
    assert min(seconds() for _ in range(20)) < first_search / 4


STATE = {"type": "string", "enum": ["open", "closed", "on hold"]}
ROW = {"title": "Flow", "type": "object", "properties": {each: {"type": "string"} for each in "abcdefghij"}}
_FORMS: list[tuple[Any, str]] = [
    ({"type": "array", "items": ROW}, "list of objects with a, b, c, d, e, f, g, h, ..."),
    (ROW, "object with a, b, c, d, e, f, g, h, ..."),
    (
        {"properties": {"data": {"type": "array", "items": ROW}, "next": {}}},
        "object with data (list of objects with a, b, c, d, ...), next",
    ),
    ({"type": "object", "additionalProperties": ROW}, "map to objects with a, b, c, d, e, f, g, h, ..."),
    ({"type": "array", "items": {"type": "string"}}, "list of string"),
    ({"type": "array"}, "list"),
    ({"type": "integer"}, "integer"),
    (STATE, '"open" or "closed" or "on hold"'),
    (
        {"type": "array", "items": {"type": "object", "properties": {"id": {}, "state": STATE}}},
        'list of objects with id, state ("open" or "closed" or "on hold")',
    ),
]


def test_a_signature_tells_a_list_from_an_object_and_no_form_of_several_fields_is_code() -> None:
    with every_row() as row:
        for schema, form in _FORMS:
            with row(form):
                catalog = Catalog({"t": app("GET /x find_x: all", **answer(schema))})
                shown = show_signatures(catalog, "t")
                assert shown == f"find_x() -> {form}: all"
                if " with " in form:
                    with pytest.raises(SyntaxError):
                        compile(form, "", "eval")
                    with pytest.raises(SyntaxError):
                        compile(f"def {shown}", "", "exec")


def test_a_signature_shows_what_a_body_takes_and_the_values_of_an_argument() -> None:
    tags = {"type": "array", "items": {"type": "string"}}
    fields = {
        "type": "object",
        "required": ["tags", "name"],
        "properties": {"tags": tags, "name": {"type": "string"}},
    }
    for schema, form in ((tags, "body (list of string)"), (fields, "tags (list of string), name")):
        catalog = Catalog({"t": app("POST /x add_x: it", **body(schema))})
        assert show_signatures(catalog, "t") == f"add_x({form}): it"
    given = [
        {"name": "state", "in": "query", "required": True, "schema": STATE},
        {"name": "sort", "in": "query", "schema": {"type": "string", "enum": ["up", "down"], "default": "up"}},
        {"name": "size", "in": "query", "schema": {"enum": list(range(1000))}},
    ]
    catalog = Catalog({"t": app("GET /x find_x: it", parameters=given)})
    sizes = " or ".join(map(str, range(20)))
    assert show_signatures(catalog, "t") == (
        'find_x(state (one of "open" or "closed" or "on hold"), sort="up" (one of "up" or "down"), '
        f"size=None (one of {sizes} or ...)): it"
    )


def test_the_answers_form_has_the_values_of_a_field_too() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "state": STATE}}
    catalog = Catalog({"t": app("GET /x list_x: all", **answer({"type": "array", "items": row}))})
    shown = show_api_doc(catalog, "t", "list_x")["response_schemas"]["success"]
    assert shown == [{"id": "integer", "state": 'string: "open" or "closed" or "on hold"'}]


@pytest.mark.parametrize(
    ("summary", "description", "shown"),
    [
        ("List Tickets", "All open tickets of a team.\n\nThe newest first.", "All open tickets of a team."),
        ("List the tickets", "", "List the tickets"),
        ("Tickets that wait", "All of them.", "Tickets that wait"),
        ("", "All of them.", "All of them."),
    ],
)
def test_a_summary_that_only_repeats_the_name_gives_way_to_the_description(
    summary: str, description: str, shown: str
) -> None:
    node = {"operationId": "list_tickets_tickets_get", "summary": summary, "description": description}
    catalog = Catalog({"t": parse_document("t", openapi({"/tickets": {"get": node}}))})
    assert show_signatures(catalog, "t") == f"list_tickets_tickets_get(): {shown}"
