"""What is read of a real API to practise on its double: the calls, and what of their answers is kept."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.apis.double.coverage import PracticeQuestion, practice_finding
from app.apis.double.masking import samples_of, with_masked_names
from app.apis.double.model import Model, read_model
from app.apis.double.reads import MOST_CALLS, Given, Reading, Readings, RealAnswer, cut, read_answers, reading_plan
from app.apis.double.state import sampled
from app.base.errors import HostError
from app.base.values import Json
from tests.support.double_documents import answer, body, document, path, query
from tests.support.every_row import every_row

_TEXT: dict[str, Json] = {"type": "string"}
_NUMBER: dict[str, Json] = {"type": "integer"}


def _record(**fields: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": {"id": _NUMBER, **fields}}


def _list(item: Json) -> dict[str, Json]:
    return {"type": "array", "items": item}


_TEAM = _record(name=_TEXT)
_BOARD = _record(title=_TEXT, open=_NUMBER)
_CARD = _record(title=_TEXT, state=_TEXT, owner=_TEXT, votes={"type": "object"})
_FIRST = [query("limit", type="integer", maximum=15), query("offset", type="integer")]
PATHS: dict[str, Any] = {
    "/teams": {"get": {"parameters": _FIRST, "responses": {"200": answer(_list(_TEAM))}},
               "post": {"requestBody": body(_TEAM), "responses": {"201": answer(_TEAM)}}},
    "/teams/{team}": {"get": {"parameters": [path("team", type="integer")], "responses": {"200": answer(_TEAM)}}},
    "/teams/{team}/boards": {
        "get": {"parameters": [path("team", type="integer")], "responses": {"200": answer(_list(_BOARD))}}
    },
    "/teams/{team}/boards/{board}": {
        "get": {
            "parameters": [path("team", type="integer"), path("board", type="integer")],
            "responses": {"200": answer(_BOARD)},
        }
    },
    "/cards": {"get": {"responses": {"200": answer({"additionalProperties": _CARD, "type": "object"})}}},
    "/cards/{card}": {"get": {"parameters": [path("card")], "responses": {"200": answer(_CARD)}}},
    "/search": {
        "get": {"parameters": [{**query("q"), "required": True}], "responses": {"200": answer(_list(_CARD))}}
    },
    "/notes": {"get": {"responses": {"200": answer()}}},
    "/notes/{note}": {"get": {"parameters": [path("note")], "responses": {"200": answer()}}},
}  # fmt: skip
REAL: dict[str, Json] = {
    "/teams": [{"id": number, "name": f"Team of Anna {number}"} for number in range(1, 6)],
    **{f"/teams/{number}": {"id": number, "name": "Anna's", "secret_key": "k-1"} for number in range(1, 6)},
    **{f"/teams/{number}/boards": [{"id": 10 * number, "title": "x", "open": 1}] for number in range(1, 6)},
    **{f"/teams/{number}/boards/{10 * number}": {"id": 10 * number, "title": "x"} for number in range(1, 6)},
    "/cards": {"anna": {"title": "Ring Anna", "state": "open"}, "b-2": {"title": "Ring Bob", "state": "open"}},
    "/cards/anna": {"title": "Ring Anna", "state": "open", "owner": "Anna", "votes": {"anna": 1}},
    "/cards/b-2": {"title": "Ring Bob", "state": "open", "owner": "Bob"},
    "/notes": [{"id": "n1", "text": "of Anna", "done": True}, {"id": "n2", "text": "of Bob", "done": False}],
    "/notes/n1": {"id": "n1", "text": "of Anna", "done": True, "color": "red"},
    "/notes/n2": {"id": "n2", "text": "of Bob", "done": False, "color": "red"},
}


class Real:
    """Answers the calls of an API's document, and keeps them."""

    def __init__(self, paths: dict[str, Any] = PATHS, answers: dict[str, Json] = REAL) -> None:
        self.document, self._answers = document(paths), answers
        self.calls: list[tuple[str, dict[str, Json]]] = []
        self.plans = 0
        self._places = {name: each.path for name, each in self.model().app.operations.items()}

    async def plan(self, samples: Mapping[str, Json]) -> list[Reading]:
        self.plans += 1
        model = self.model(samples)
        return reading_plan(model, model.app)

    def model(self, samples: Mapping[str, Json] = {}) -> Model:
        return read_model("desk", self.document, samples=samples)

    async def ask(self, operation: str, arguments: dict[str, Json]) -> Given:
        place, given = self._places[operation], dict(arguments)
        for name in list(given):
            if f"{{{name}}}" in place:
                place = place.replace(f"{{{name}}}", str(given.pop(name)))
        self.calls.append((place, given))
        found = self._answers.get(place, Given(404))
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Given) else Given(200, found)

    async def read(self) -> Readings:
        return await read_answers(self.plan, self.ask)


async def test_lists_are_read_first_then_records_and_lists_of_a_few_of_them_and_nothing_is_changed() -> None:
    real = Real()
    readings = await real.read()
    places = [place for place, _ in real.calls]
    assert places[:3] == ["/teams", "/cards", "/notes"]
    assert dict(real.calls)["/teams"] == {"limit": 15}
    assert {each for each in places if each.startswith("/teams")} == {
        "/teams",
        *(f"/teams/{number}" for number in (1, 2, 3)),
        *(f"/teams/{number}/boards" for number in (1, 2, 3)),
        *(f"/teams/{number}/boards/{10 * number}" for number in (1, 2, 3)),
    }
    assert len(places) == len(set(map(str, real.calls))) == readings.calls
    assert "/search" not in places  # nobody knows what to look for
    assert readings.skipped == []


async def test_a_record_that_is_listed_twice_is_read_once_and_others_in_its_place() -> None:
    rows = [{"id": number, "name": "x"} for number in (1, 1, 1, 2, 2, 3, 4)]
    real = Real(answers={**REAL, "/teams": rows})
    await real.read()
    places = [place for place, _ in real.calls]
    assert [each for each in places if each.count("/") == 2 and each.startswith("/teams")] == [
        f"/teams/{number}" for number in (1, 2, 3)
    ]


async def test_answers_without_a_schema_are_read_until_it_is_known_what_they_are() -> None:
    real = Real()
    readings = await real.read()
    assert [place for place, _ in real.calls][-2:] == ["/notes/n1", "/notes/n2"]
    assert real.plans == 3
    before = real.model()
    model = real.model(samples_of(readings))
    assert "notes" not in before.collections
    assert set(model.collections["notes"].item["properties"]) == {"id", "text", "done", "color"}
    assert len(model.operations) == len(before.operations) + 2


async def test_reading_stops_where_a_server_asks_for_it() -> None:
    many = {f"/things{number}": {"get": {"responses": {"200": answer(_list(_TEAM))}}} for number in range(150)}
    every = list(many)
    large = [dict.fromkeys(every, "x" * 1_000)] * 2
    none_left = Given(200, large, {"X-RateLimit-Remaining": "0"})
    rows: list[tuple[str, dict[str, Json], int, str]] = [
        ("large errors", {each: Given(500, large) for each in every}, 5, "no further call was made after 5 that"),
        ("large at the limit", {**dict.fromkeys(every), "/things0": none_left}, 1, "none was made after GET"),
        ("pause", {"/things0": [], "/things1": Given(429)}, 2, "GET /things1 was not read: the server asks for a"),
        ("limit", {"/things0": Given(200, [], {"X-RateLimit-Remaining": "0"})}, 1, "none was made after GET"),
        ("errors", {"/things0": Given(500)}, 5, "no further call was made after 5 that failed"),
        ("down", dict.fromkeys(every, HostError("ApiError", "no connection")), 5, "no connection"),
        ("many", dict.fromkeys(every), MOST_CALLS, "100 calls were made"),
        ("large", {**dict.fromkeys(every), "/things0": large}, MOST_CALLS,
         "GET /things0 was not read: its answer has more than 256 KB"),
    ]  # fmt: skip
    with every_row() as row:
        for name, answers, calls, said in rows:
            with row(name):
                real = Real(many, answers)
                readings = await real.read()
                assert len(real.calls) == readings.calls == calls
                assert said in " ".join(readings.skipped)


async def test_what_is_kept_has_the_form_of_the_answers_and_nothing_of_anybody() -> None:
    real = Real()
    kept = samples_of(await real.read(), is_secret=lambda text: text == "hunter2")
    for text in ("Anna", "anna", "Bob", "k-1", "Ring"):
        assert text not in str(kept), text
    by_path = {each.operation.path: name for name, each in real.model().operations.items() if name[:3] == "get"}
    teams, cards = kept[by_path["/teams"]], kept[by_path["/cards"]]
    assert [sorted(each) for each in teams] == [["id", "name"]] * 5
    assert all(isinstance(each["id"], int) and isinstance(each["name"], str) for each in teams)
    assert len(kept[by_path["/teams/{team}/boards"]]) == 3  # those of three teams
    assert [each["state"] for each in cards.values()] == ["open", "open"]
    model = real.model(kept)
    seen = sampled(model, kept)
    assert seen.lists["cards"]["state"].values == ("open",)
    assert seen.left_out(model.collections["cards"], lists=True) == {"id", "owner", "votes"}  # a map has the keys


def test_what_cannot_be_stored_is_cut_off() -> None:
    deep: Json = 1
    for _ in range(100):
        deep = [deep]
    odd = {"big": 2**70, "bytes": b"x", "inf": float("inf"), "text": "a\ud800", "b\ud800": "x" * 5_000}
    found = cut({"deep": deep, "odd": odd, "many": [[{"a": [0] * 90}] * 90] * 90})
    assert len(msgspec.msgpack.encode(found)) < 200_000
    assert list(found["odd"].values())[:4] == [None, None, None, "a?"]
    assert len(found["odd"]["b?"]) == 1_000
    assert len(found["many"]) == 50


def masked(values: Sequence[Json], reading: Reading | None = None) -> Json:
    """What is kept of several answers to the same operation."""
    answers = [
        RealAnswer(name="l", operation="l", place="GET /things", arguments={}, given=Given(200, each))
        for each in values
    ]
    readings = Readings(answers=answers, plan=[] if reading is None else [reading])
    [found] = samples_of(readings, is_secret=lambda text: text == "hunter2").values()
    return found


def test_values_become_others_of_the_same_form_wherever_they_stand() -> None:
    rows: list[tuple[str, Json]] = [
        ("a", {"email": "anna@real.test"}), ("b", {"owner": {"nick": "anna", "age": 61, "id": "u-7811"}}),
        ("c", {"by_mail": {"anna@real.test": 3}}), ("d", [["anna"], ["anna"]]), ("e", {"note": "anna " * 30}),
        ("f", {"total": 8347.25}), ("g", {"links": ["https://anna.test/7811"]}), ("h", "anna"),
        ("i", {"text": "hunter2", "hunter2": 1}), ("j", {"anna": {"x": 1}, "bob": {"x": 2}, "carl": {"x": 3}}),
        ("k", {"7811": {"x": 1}}), ("l", {"token": 7811}), ("m", {"user_name": ["anna", "anna", "anna"]}),
        ("n", {"labels": ["anna", "anna"]}), ("o", [{"labels": ["anna", "anna"]}]),
        ("q", [{"lines": [{"who": "anna"}, {"who": "anna"}]}]),
        ("p", {"id": 7, "lines": [{"who": "anna"}, {"who": "anna"}]}),
    ]  # fmt: skip
    with every_row() as row:
        for name, value in rows:
            with row(name):
                found = masked([value])
                assert _form(found) == _form(value)
                said = str(found)
                for text in ("anna", "real.test", "7811", "8347.25", "hunter2"):
                    assert text not in said, said


def _members(**more: Json) -> list[Json]:
    return [{"id": 1, "title": "Bob Smith", **more}, {"id": 2, "title": "Ann Lee", **more}]


def test_a_record_that_is_shown_twice_shares_its_texts_with_no_other() -> None:
    listing = Reading(name="l", operation="l", place="GET /projects/{p}/people", holds="list", keys=("people",))
    one = msgspec.structs.replace(listing, place="GET /people/{p}", holds="one", keys=())
    shared = [{"people": [{"id": at, "title": "Bob Smith"}]} for at in range(4)]
    rows: list[tuple[str, Reading | None, list[Json], bool]] = [
        ("the same list twice", listing, [{"people": _members()}, {"people": _members()}], False),
        ("with other fields", listing, [{"people": _members(role=1)}, {"people": _members(role=2)}], False),
        ("without keys", listing, [{"people": [{"title": "Bob Smith"}]}] * 2, False),
        ("by itself", one, [{"id": 1, "title": "Bob Smith"}] * 2, False),
        ("in one answer", None, [[*_members(), *_members()]], False),
        ("in other records", None, [[{"id": at, "by": _members()[0]} for at in range(4)]], False),
        ("in lists of others", None, [[{"id": at, "team": _members()} for at in range(4)]], False),
        ("a map", msgspec.structs.replace(listing, holds="map"), [{"people": {"a": _members()[0]}}] * 2, False),
        ("several records", listing, shared, True),
    ]  # fmt: skip
    with every_row() as row:
        for name, reading, values, kept in rows:
            with row(name):
                assert ("Bob Smith" in str(masked(values, reading))) is kept


def test_texts_of_people_are_not_kept_however_many_records_share_them() -> None:
    private = (
        "assigned_to assignedTo created_by createdby approvedBy requester reviewer approver display_name nickname "
        "nick given_name surname family_name account_name accountNumber company organisation organization owner "
        "user client_ip dob credit_card card_number name"
    )
    with every_row() as row:
        for name in private.split():
            with row(name):
                assert "Bob Smith" not in str(masked([[{"id": at, name: "Bob Smith"} for at in range(4)]]))
        for name in ("cards", "card", "state", "ship", "title", "syntax", "label", "color"):
            with row(name):
                assert "to do" in str(masked([[{"id": at, name: "to do"} for at in range(4)]]))


def test_a_key_in_a_path_stays_only_if_what_it_follows_is_nobodys() -> None:
    rows: list[tuple[str, dict[str, Json], str]] = [
        ("/customers/{id}/documents", {"id": "alice"}, "docs?id="),
        ("/v1/accounts/{id}/tables/{table}/rows", {"id": "alice", "table": "wines"}, "table=wines"),
        ("/tables/{user}/rows", {"user": "alice"}, "docs?user="),
        ("/collections/{id}/documents", {"id": "wines"}, "docs?id=wines"),
    ]
    with every_row() as row:
        for path, kind, kept in rows:
            with row(path):
                read = RealAnswer(
                    name="docs",
                    operation="docs",
                    place=f"GET {path}",
                    arguments={},
                    given=Given(200, []),
                    kind=kind,
                )
                [sample] = samples_of(Readings(answers=[read]))
                assert kept in sample
                assert "alice" not in sample


def test_a_name_stays_only_if_the_document_says_it_or_most_of_several_records_have_it() -> None:
    reading = Reading(name="l", operation="l", place="GET /polls", names=("votes", "paused"))
    votes = {"alice": 3, "bob_marley": 4}
    rows: list[tuple[str, list[Json], str, str]] = [
        ("scalars", [{"votes": votes}], "votes", "alice bob_marley"),
        ("a small map", [{"alice": {"x": 1}}, {"bob": {"x": 2}}], "", "alice bob"),
        ("in one of several", [[{"id": at, "votes": votes if at else {"carl": 1}} for at in range(2)]],
         "votes", "alice bob_marley carl"),
        ("in the same record", [{"id": 1, "votes": votes}] * 3, "votes", "alice bob_marley"),
        ("lists", [{"votes": {"alice": [1], "bob_marley": []}}], "votes", "alice bob_marley"),
        ("around", [{"polls": [], "total": 1, "alice": 2}], "polls total", "alice"),
        ("fields of records", [[{"id": at, "shade": at} for at in range(3)]], "shade", ""),
        ("fields of answers", [{"id": at, "shade": at} for at in range(3)], "shade", ""),
        ("said", [{"paused": True, "created_at": 1, "alice": 2}], "paused created_at", "alice"),
    ]  # fmt: skip
    with every_row() as row:
        for name, values, kept, gone in rows:
            for said in (str(masked(values, reading)), str(with_masked_names(values, reading))):
                with row(name, said):
                    assert [each for each in kept.split() if each not in said] == []
                    assert [each for each in gone.split() if each in said] == []


def _form(value: Json) -> Json:
    if isinstance(value, dict):
        return [_form(each) for each in value.values()]
    if isinstance(value, list):
        return [_form(each) for each in value]
    return type(value).__name__


async def test_the_double_is_held_against_what_was_read() -> None:
    real = Real()
    readings = await real.read()
    question = PracticeQuestion(about="differences", answers=readings.answers)
    question = msgspec.json.decode(msgspec.json.encode(question), type=PracticeQuestion)
    found = practice_finding(real.document, real.model().app, question).differences
    assert "GET /teams/{team}: the real server also has secret_key" in found
    assert "GET /cards: the real server leaves out id, owner, votes of records of the list" in found
    assert "anna" not in str(found).lower()
    assert not [each for each in found if "/teams:" in each]
