"""Questions for the trial of an API: what is asked, what is not, and which answers are right."""

from typing import Any

from app.apis.catalog import App
from app.apis.documents.protocols import parse_document
from app.apis.trial_questions import (
    MOST,
    Question,
    Read,
    Seen,
    answer_of,
    answers,
    first_reads,
    further_reads,
    is_right,
    questions,
    seen_of,
)
from tests.support.every_row import every_row

TICKETS = [
    {"id": 11, "subject": "Broken lamp", "priority": "low", "replies": 2, "opened_at": "2025-03-01T08:00:00Z"},
    {"id": 12, "subject": "No heating", "priority": "high", "replies": 9, "opened_at": "2025-03-04T08:00:00Z"},
    {"id": 13, "subject": "Lost key", "priority": "low", "replies": 1, "opened_at": "2025-03-02T08:00:00Z"},
]
AGENTS = {"data": [{"name": "Ann", "team": "North"}, {"name": "Bob", "team": "South"}], "total": 2}


def desk(*more: str, **paths: Any) -> App:
    """An API of tickets; `more` are optional parameters of its list, `paths` further operations by name."""
    found = {
        "/tickets": read("list_tickets", *((each, False) for each in more)),
        "/tickets/{id}": read("show_ticket", ("id", True)),
        "/agents": read("list_agents"),
        **paths,
    }
    document = {"openapi": "3.1.0", "info": {"title": "Desk", "version": "1"}, "paths": found}
    return parse_document("desk", {**document, "servers": [{"url": "http://desk.test"}]})


def read(name: str, *parameters: tuple[str, bool], method: str = "get") -> dict[str, Any]:
    listed = [
        {
            "name": each,
            "in": "path" if each == "id" else "query",
            "required": needed,
            "schema": {"type": "integer"},
        }
        for each, needed in parameters
    ]
    return {method: {"operationId": name, "parameters": listed, "responses": {"200": {"description": ""}}}}


def asked(app: App, *seen: Seen) -> list[tuple[str, Any]]:
    return [(each.text, each.right) for each in questions(app, seen)]


def test_only_reads_that_need_nothing_come_first_and_then_those_of_an_item_that_was_seen() -> None:
    others = {
        "/tickets/purge": read("purge", method="post"),
        "/login": read("login"),
        "/day": read("day", ("on", True)),
    }
    app = desk(**others)
    first = first_reads(app)
    assert [each.operation for each in first] == ["list_agents", "list_tickets"]
    [further] = further_reads(app, [Seen(Read("list_tickets"), TICKETS)])
    assert (further.operation, further.arguments) == ("show_ticket", {"id": 12})
    assert further_reads(app, [Seen(Read("list_tickets"), [])]) == []


def test_an_argument_is_taken_from_an_item_that_it_is_about() -> None:
    table: list[tuple[str, str, Any, str]] = [
        ("/find_ticket/{id}", "id", 12, "the ticket with the id 12"),
        ("/find_agent/{id}", "id", None, ""),
        ("/history", "ticket_id", 12, "the ticket with the id 12"),
        ("/history", "agent_id", 5, "the agent with the id 5"),
        ("/history", "team_id", None, ""),
        ("/history", "day", None, ""),
    ]
    rows = [{**each, "agent_id": 5, "day": "2025-03-01"} for each in TICKETS]
    with every_row() as row:
        for path, parameter, value, of in table:
            with row(path, parameter):
                app = desk(**{path: read("look", (parameter, True))})
                found = further_reads(app, [Seen(Read("list_tickets"), rows)])
                looks = [(each.arguments, each.of) for each in found if each.operation == "look"]
                assert looks == ([({parameter: value}, of)] if of else [])


def test_a_page_that_a_call_has_to_name_is_the_first() -> None:
    notes, days = read("list_notes", ("page", True), ("limit", True)), read("list_days", ("on", True))
    app = desk(**{"/notes": notes, "/days": days})
    [first] = [each for each in first_reads(app) if each.operation in ("list_notes", "list_days")]
    assert first == Read("list_notes", {"page": 1, "limit": 50})
    assert seen_of(app, first, TICKETS, None).count == 3
    assert seen_of(app, first, [{"id": each} for each in range(50)], None).count is None


def test_the_questions_are_of_all_kinds_and_name_no_operation() -> None:
    app, seen = desk(), [Seen(Read("list_tickets"), TICKETS)]
    made = questions(app, seen)
    assert [(each.text, each.right) for each in made] == [
        ("How many tickets are there in desk? Answer with the number alone.", 3),
        ("What is the subject of the ticket with the id 12 in desk?", "No heating"),
        ("Which ticket in desk has the largest replies? Answer with its id.", 12),
        ("How many tickets in desk have the priority low? Answer with the number alone.", 2),
        ("What is the subject of the ticket with the id 13 in desk?", "Lost key"),
    ]
    assert all("list_tickets" not in each.text for each in made)
    for question in made:
        assert answer_of(question, seen[0]) == question.right
        assert answers(question, question.right, question.right)


def test_several_reads_are_asked_about_before_one_is_asked_about_twice() -> None:
    app = desk()
    [further] = further_reads(app, [Seen(Read("list_tickets"), TICKETS)])
    seen = [
        Seen(Read("list_tickets"), TICKETS),
        Seen(Read("list_agents"), AGENTS),
        Seen(further, {**TICKETS[1], "assignee": "Ann"}),
    ]
    made = questions(app, seen)
    assert len(made) == MOST
    assert [each.read.operation for each in made][:3] == ["list_tickets", "list_agents", "show_ticket"]
    assert ("What is the subject of the ticket with the id 12 in desk?", "No heating") in asked(app, *seen)


def test_a_list_that_goes_on_is_counted_only_where_it_says_how_long_it_is() -> None:
    page, total = [{"id": each, "name": f"ticket {each}"} for each in range(10)], {"data": TICKETS, "total": 40}
    table: list[tuple[str, App, Any, Any, int | None]] = [
        ("one page", desk(), TICKETS, None, 3),
        ("a next page", desk("page"), TICKETS, {"page": 2}, None),
        ("a next page, and its total", desk("page"), total, {"page": 2}, 40),
        ("more than the answer shows", desk(), {"data": TICKETS, "has_more": True}, None, None),
        ("a sum of something else", desk(), total, None, None),
        ("it looks cut", desk(), page, None, None),
        ("shorter than its size may be", desk("limit"), TICKETS, None, 3),
        ("as long as its size may be", desk("limit"), page, None, None),
        ("nothing", desk(), [], None, 0),
        ("its total is what it has", desk("page"), {"data": page, "total": 10}, None, 10),
    ]
    with every_row() as row:
        for name, app, value, following, count in table:
            with row(name):
                seen = seen_of(app, Read("list_tickets"), value, following)
                assert seen.count == count
                counted = [each.right for each in questions(app, [seen]) if each.kind == "count"]
                assert counted == ([count] if count else [])
                if count is None:
                    assert {each.kind for each in questions(app, [seen])} <= {"field"}


def test_secrets_personal_fields_and_long_texts_are_not_asked_for() -> None:
    fields = {
        "api_key": "k-123456",
        "password": "hunter22",
        "email": "ann@desk.test",
        "phone_number": "123",
        "birthday": "2000-01-01",
        "note": "She called twice about the lamp in the hall, and was not amused at all.",
        "link": "https://desk.test/1",
        "lines": "one\ntwo",
        "pin": "of a known secret",
    }
    with every_row() as row:
        for name, value in fields.items():
            with row(name):
                seen = Seen(Read("list_agents"), [{"id": each, name: f"{value}{each}"} for each in (1, 2, 3)])
                made = questions(desk(), [seen], lambda text: "known secret" in text)
                assert [each.kind for each in made] == ["count"]
                assert not questions(
                    desk(), [Seen(Read("list_agents"), {name: value})], lambda text: "known" in text
                )


def test_a_masked_value_is_not_asked_for() -> None:
    with every_row() as row:
        for masked in ("********", "xxxxxxxx", "••••", "****-1234", "--", "<hidden>"):
            with row(masked):
                assert questions(desk(), [Seen(Read("list_agents"), {"plan": masked})]) == []
                rows = [{"id": each, "plan": masked if each > 1 else "pro"} for each in range(1, 6)]
                made = questions(desk(), [Seen(Read("list_tickets"), rows)])
                assert masked not in str([(each.text, each.right) for each in made])
    assert len(questions(desk(), [Seen(Read("list_agents"), {"plan": "pro"})])) == 1


def test_nothing_is_asked_of_what_holds_nothing() -> None:
    nothing: list[Any] = [[], {"data": []}, {}, "a text", None, {"data": {"items": []}}, {"id": None}]
    with every_row() as row:
        for value in nothing:
            with row(value):
                assert questions(desk(), [seen_of(desk(), Read("list_tickets"), value, None)]) == []


def test_what_any_item_might_be_is_not_asked_for() -> None:
    same = [{"id": each, "state": "open", "rank": 1} for each in (1, 2, 3)]
    assert [each.kind for each in questions(desk(), [Seen(Read("list_tickets"), same)])] == ["count"]
    unnamed = [{"state": "open"}, {"state": "closed"}, {"state": "open"}]
    made = questions(desk(), [Seen(Read("list_tickets"), unnamed)])
    assert [(each.kind, each.right) for each in made] == [("count", 3), ("matching", 2)]


def test_an_answer_is_right_in_any_form_and_never_with_another_number() -> None:
    right: list[tuple[Any, Any]] = [
        (3, 3), (3, 3.0), (3, "3"), (3, "There are 3 tickets."), (1234, "1,234"), (3, {"count": 3}), (3, [3]),
        (2.5, "2.50"), (-4, "-4"), ("high", "HIGH"), ("high", "The priority is high."), ("12", 12),
        ("No heating", '"no heating"'), ("2025-03-01", "on 2025-03-01"),
        ("2025-03-01T08:00:00Z", "2025-03-01T08:00:00+00:00"),
    ]  # fmt: skip
    wrong: list[tuple[Any, Any]] = [
        (3, 4), (3, "4"), (3, "13"), (3, "3.5"), (3, "3 of 40"), (3, "2 or 3"), (3, True), (1, True), (3, None),
        (3, ""), (3, "three"), (3, [3, 4]), (3, {"a": 3, "b": 4}), (3, "-3"), (3, "A3"), (1234, "1,2345"),
        ("high", "low"), ("high", "high or low"), ("high", "highest"), ("12", "12 13"), ("12", 13),
        ("2025-03-01", "2025-03-011"), ("2025-03-01", "2025-03-01 or 2025-03-02"), ("v2", "v2 or 3"),
        ("high", None), (3, "3" * 500),
    ]  # fmt: skip
    with every_row() as row:
        for truth, given in right:
            with row("right", truth, given):
                assert is_right(truth, given, others=["low"])
        for truth, given in wrong:
            with row("wrong", truth, given):
                assert not is_right(truth, given, others=["low"])


def test_the_item_itself_says_which_it_is() -> None:
    question = Question(text="Which?", right=12, read=Read("list_tickets"), kind="most", key="id", field="replies")
    assert answers(question, TICKETS[1], 12)
    assert not answers(question, TICKETS[0], 12)


def test_numbers_may_be_larger_than_a_float() -> None:
    huge = 10**400
    with every_row() as row:
        for right, given, is_so in [
            (12.5, huge, False),
            (huge, 12.5, False),
            (huge, huge, True),
            (huge, huge + 1, False),
            (huge, str(huge), False),  # longer than any answer that is read
            (12.5, f"{'9' * 390}", False),
            (10**390, f"it is {'9' * 390}", False),
        ]:
            with row(f"{right} {given}"[:40]):
                assert is_right(right, given) is is_so
    app = desk()
    rows = [{"id": 11, "name": "Ann", "replies": huge}, {"id": 12, "name": "Bob", "replies": 2}]
    seen = seen_of(app, Read(operation="list_tickets"), rows, None)
    assert all(each.right is not None for each in questions(app, [seen]))
