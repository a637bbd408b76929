"""The double of an API: what it answers to plain calls, and what it keeps of them."""

import json
from typing import NamedTuple

import httpx
import pytest

from app.apis.double.model import read_model
from app.apis.double.service import Answer, Double
from app.apis.double.state import changes
from app.base.values import Json
from tests.support.double_documents import DESK
from tests.support.every_row import every_row

_MODEL = read_model("desk", DESK)


class Client(NamedTuple):
    """Calls a double with its credential."""

    double: Double

    def __call__(self, method: str, path: str, query: str = "", body: Json = None) -> Answer:
        headers = {**self.double.authentication().headers, "content-type": "application/json"}
        return self.double.respond(
            method, path, query, headers, b"" if body is None else json.dumps(body).encode()
        )


@pytest.fixture
def call() -> Client:
    return Client(Double(_MODEL, "first"))


def test_what_was_created_is_listed_shown_changed_and_deleted(call: Client) -> None:
    folder = call("GET", "/folders").value[0]["id"]
    before = call("GET", "/notes").value["total"]
    made = call("POST", "/notes", body={"title": "Buy milk", "folder_id": folder})
    assert made.status == 201
    note = made.value
    assert (note["title"], note["folder_id"], note["state"]) == ("Buy milk", folder, "open")
    address = f"/notes/{note['id']}"
    assert call("GET", "/notes").value["total"] == before + 1
    assert call("GET", address).value == note
    changed = call("PATCH", address, body={"pinned": True}).value
    assert (changed["pinned"], changed["title"]) == (True, "Buy milk")
    assert changed["updated_at"] > note["updated_at"]
    assert changed["created_at"] == note["created_at"]
    assert call("DELETE", address).status == 204
    assert call("GET", address).status == 404
    assert call("GET", "/notes").value["total"] == before


def test_a_replacement_forgets_what_it_does_not_name(call: Client) -> None:
    note = call("POST", "/notes", body={"title": "a", "folder_id": 1, "text": "b", "priority": 2}).value
    replaced = call("PUT", f"/notes/{note['id']}", body={"title": "c", "folder_id": 1}).value
    assert (replaced["title"], replaced["text"]) == ("c", None)
    assert "priority" not in replaced
    assert (replaced["id"], replaced["created_at"]) == (note["id"], note["created_at"])


def test_an_action_does_what_its_verb_says_and_one_that_nobody_knows_is_not_modelled(call: Client) -> None:
    note = call("POST", "/notes", body={"title": "a", "folder_id": 1}).value
    closed = call("POST", f"/notes/{note['id']}/close").value
    assert closed["state"] == "closed"
    assert closed["closed_at"] is not None
    assert call("POST", f"/notes/{note['id']}/sync").status == 501
    [left_out] = _MODEL.left_out
    assert left_out.operation == "POST /notes/{id}/sync"
    assert "cannot be told" in left_out.reason
    assert _MODEL.coverage == "14 of 15"


def test_what_the_document_forbids_is_refused_in_its_own_form(call: Client) -> None:
    note = call("GET", "/notes").value["items"][0]
    taken = call("GET", "/folders").value[0]["name"]
    rows: list[tuple[str, str, str, Json, int, str]] = [
        ("POST", "/notes", "", {"folder_id": 1}, 422, "title"),
        ("POST", "/notes", "", {"title": "a", "folder_id": "one"}, 422, "folder_id"),
        ("POST", "/notes", "", {"title": "a", "folder_id": 1, "more": 1}, 422, "more"),
        ("POST", "/notes", "", {"title": "a", "folder_id": 99}, 422, "folder"),
        ("POST", "/folders", "", {"name": taken}, 409, taken),
        ("GET", "/notes", "state=lost", None, 422, "state"),
        ("GET", "/notes", "page=0", None, 422, "page"),
        ("GET", "/notes/2b1c0a52-0000-4000-8000-000000000000", "", None, 404, "note"),
        ("GET", "/folders/99/notes", "", None, 404, "folder"),
        ("PATCH", f"/notes/{note['id']}", "", {"priority": 9}, 422, "priority"),
        ("PATCH", "/settings", "", {"language": "xx"}, 422, "language"),
        ("PUT", "/settings", "", {}, 405, "not allowed"),
        ("GET", "/nothing", "", None, 404, "nothing"),
    ]
    before = call.double.state.copy()
    with every_row() as row:
        for method, path, query, body, status, said in rows:
            with row(method, path, query, status):
                answer = call(method, path, query, body)
                assert answer.status == status
                assert said in answer.value["message"]
    assert changes(before, call.double.state) == []


def test_without_the_credential_nothing_is_answered(call: Client) -> None:
    for headers in ({}, {"X-Key": "wrong"}):
        answer = call.double.respond("GET", "/notes", headers=headers)
        assert (answer.status, answer.value["code"]) == (401, 401)


def test_a_limit_is_only_kept_where_the_document_names_it(call: Client) -> None:
    call.double.limit_next = 1
    assert call("GET", "/folders").status == 200
    limited = call("GET", "/notes")
    assert (limited.status, limited.headers["Retry-After"]) == (429, "1")
    assert call("GET", "/notes").status == 200


def test_the_same_seed_gives_the_same_answers_and_another_seed_others() -> None:
    def first(seed: str) -> list[Json]:
        call = Client(Double(_MODEL, seed))
        made = call("POST", "/notes", body={"title": "a", "folder_id": 1}).value
        return [made, call("GET", "/notes").value]

    assert first("a") == first("a")
    assert first("a") != first("b")


def test_the_changes_between_two_states_are_told_in_words(call: Client) -> None:
    note, other = call("GET", "/notes").value["items"][:2]
    before = call.double.state.copy()
    call("PATCH", f"/notes/{note['id']}", body={"title": "new"})
    call("DELETE", f"/notes/{other['id']}")
    call("POST", "/folders", body={"name": "Attic"})
    call("PATCH", "/settings", body={"language": "de"})
    told = changes(before, call.double.state)
    assert any(each.startswith(f"changed notes {note['id']}: title {note['title']!r} -> 'new'") for each in told)
    assert f"deleted notes {other['id']}" in told
    assert any(each.startswith("created folders ") and "'Attic'" in each for each in told)
    call.double.state = before
    assert call("GET", f"/notes/{other['id']}").value == other


def test_notes_are_in_folders_that_there_are_and_nothing_open_was_closed(call: Client) -> None:
    folders = {each["id"]: each for each in call("GET", "/folders").value}
    notes = call("GET", "/notes", "per_page=50").value["items"]
    assert {each["folder_id"] for each in notes} <= folders.keys()
    assert all(each["closed_at"] is None for each in notes if each["state"] == "open")
    assert len({each["title"] for each in notes}) > len(notes) // 2
    for folder in folders:
        inside = call("GET", f"/folders/{folder}/notes").value
        assert inside == [each for each in notes if each["folder_id"] == folder]


async def test_a_client_of_http_reaches_it_by_its_transport() -> None:
    double = Double(_MODEL, "first")
    address = "https://desk.test/api/folders"
    headers = double.authentication().headers
    async with httpx.AsyncClient(transport=double.transport()) as client:
        answer = await client.get(address, headers=headers)
    with httpx.Client(transport=double.transport()) as client:
        assert client.get(address, headers=headers).json() == answer.json()
    assert answer.json()[0]["id"] == 1
