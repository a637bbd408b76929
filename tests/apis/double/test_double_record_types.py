"""Records whose fields users define: samples show them, by place, and each place has a type of its own."""

from typing import Any

import msgspec
import pytest

from app.apis.double.coverage import PracticeQuestion, practice_finding
from app.apis.double.masking import samples_of
from app.apis.double.model import Model, read_model
from app.apis.double.record_types import is_word, sample_key
from app.apis.double.service import Double
from app.apis.double.shapes import fields_of
from app.apis.double.state import sampled
from app.base.values import Json
from tests.apis.double.test_practice_reads import Real
from tests.support.double_documents import answer, document
from tests.support.every_row import every_row
from tests.support.practice_documents import LOCKER, LOCKER_SAMPLES, VAULT, VAULT_SAMPLES

ARTICLES = "rooms/blog/shelf_sets/articles"
HOME = "/rooms/blog/shelf_sets/articles/records"


@pytest.fixture(scope="module")
def model() -> Model:
    return read_model("vault", VAULT, samples=VAULT_SAMPLES)


@pytest.fixture
def double(model: Model) -> Double:
    return Double(model, "seed", seen=sampled(model, VAULT_SAMPLES))


def send(double: Double, method: str, path: str, data: Json = None) -> tuple[int, Any]:
    content = b"" if data is None else msgspec.json.encode({"data": data})
    found = double.respond(method, path, "", {"Content-Type": "application/json"}, content)
    return found.status, found.value["data"] if found.status < 300 and found.value else found.value


def test_each_place_has_a_type_with_the_fields_that_its_rows_have(model: Model) -> None:
    types = {name: each for name, each in model.collections.items() if each.home}
    assert {name: each.noun for name, each in types.items()} == {
        ARTICLES: "article",
        "rooms/blog/shelf_sets/editors": "editor",
        "rooms/archive/shelf_sets/articles": "article",
        "rooms/cellar/shelf_sets/wines": "wine",
    }
    assert types[ARTICLES].item["properties"] == {
        "id": {"type": "string"},
        "last_modified": {"type": "integer", "format": "timestamp", "readOnly": True},
        "title": {"type": "string"},
        "status": {"type": "string", "enum": ["draft", "published", "archived"]},
        "words": {"type": "integer"},
        "featured": {"type": "boolean"},
        "published_on": {"type": ["string", "null"], "format": "date"},
        "editor_id": {"type": "string"},
    }
    assert [(each.collection, each.key) for each in types[ARTICLES].home] == [
        ("rooms", "blog"),
        ("rooms/shelf_sets", "articles"),
    ]
    assert [(each.field, each.collection) for each in types[ARTICLES].links] == [
        ("editor_id", "rooms/blog/shelf_sets/editors")
    ]
    elsewhere = types["rooms/archive/shelf_sets/articles"]
    assert elsewhere.item == types[ARTICLES].item  # though its own rows tell of no choice
    assert elsewhere.links == ()  # it has no editors
    assert [name for name, each in model.collections.items() if each.named] == ["rooms", "rooms/shelf_sets"]


def test_the_same_calls_read_and_write_the_records_of_the_place_in_their_path(double: Double) -> None:
    _, articles = send(double, "GET", HOME)
    _, wines = send(double, "GET", "/rooms/cellar/shelf_sets/wines/records")
    assert {"title", "status", "words"} <= {name for each in articles for name in each}
    assert {"label", "color", "price"} <= {name for each in wines for name in each}
    status, made = send(double, "POST", HOME, {"title": "Late news", "words": 12})
    assert status == 200 or status == 201
    assert made.keys() == {"id", "last_modified", "title", "words"}  # nothing that nobody gave
    one = f"{HOME}/{made['id']}"
    assert send(double, "GET", one)[1] == made
    assert send(double, "GET", f"/rooms/archive/shelf_sets/articles/records/{made['id']}")[0] == 404
    assert len(send(double, "GET", HOME)[1]) == len(articles) + 1
    send(double, "PATCH", one, {"status": "draft"})
    changed = send(double, "GET", one)[1]
    assert (changed["title"], changed["status"]) == ("Late news", "draft")
    send(double, "PUT", one, {"title": "Later news"})
    replaced = send(double, "GET", one)[1]
    assert replaced.keys() == {"id", "last_modified", "title"}
    send(double, "PATCH", one, {"mood": "good"})  # a field that no record had
    assert send(double, "GET", one)[1]["mood"] == "good"
    assert send(double, "DELETE", one)[0] == 200
    assert send(double, "GET", one)[0] == 404


def test_records_go_with_what_they_are_in_and_a_new_place_begins_empty(double: Double) -> None:
    rows = [
        ("GET", "/rooms/nowhere/shelf_sets/articles/records", None, 404),
        ("GET", "/rooms/cellar/shelf_sets/articles/records", None, 404),
        ("PUT", "/rooms/cellar/shelf_sets/cheeses", {}, 201),
        ("GET", "/rooms/cellar/shelf_sets/cheeses/records", None, 200),
        ("POST", "/rooms/cellar/shelf_sets", {"id": "breads"}, 201),
        ("GET", "/rooms/cellar/shelf_sets/breads", None, 200),
        ("DELETE", "/rooms/blog/shelf_sets/articles", None, 200),
        ("GET", HOME, None, 404),
        ("GET", "/rooms/blog/shelf_sets/editors/records", None, 200),
        ("DELETE", "/rooms/blog", None, 200),
        ("GET", "/rooms/blog/shelf_sets/editors/records", None, 404),
        ("GET", "/rooms/archive/shelf_sets/articles/records", None, 200),
    ]
    for method, path, data, status in rows:
        assert send(double, method, path, data)[0] == status, (method, path)
    assert send(double, "GET", "/rooms/cellar/shelf_sets/cheeses/records")[1] == []
    assert not double.state.records[ARTICLES]


def test_the_kind_of_the_records_may_end_the_path_of_their_list() -> None:
    model = read_model("locker", LOCKER, samples=LOCKER_SAMPLES)
    double = Double(model, "seed")
    assert [(each.noun, each.home[0].what) for each in model.collections.values() if each.home] == [
        ("article", "collection"),
        ("wine", "collection"),
    ]
    content = msgspec.json.encode({"label": "Old one", "price": 9.5})
    made = double.respond("POST", "/items/wines", "", {"Content-Type": "application/json"}, content)
    assert made.value["data"]["label"] == "Old one"
    assert len(double.state.records["items/wines"]) == 1 + len(Double(model, "seed").state.records["items/wines"])
    assert double.respond("GET", "/items/cheeses").status == 404


def test_what_samples_do_not_show_or_schemas_tell_stays_as_it_is(model: Model) -> None:
    plain = read_model("vault", VAULT)
    assert not plain.typed
    assert plain.coverage == model.coverage == "18 of 18"
    told = {"type": "object", "properties": {"id": {"type": "string"}, "name": {"type": "string"}}}
    listed = {"get": {"operationId": "list", "responses": {"200": answer({"type": "array", "items": told})}}}
    rows: list[tuple[str, dict[str, Json], dict[str, Json]]] = [
        ("declared", {"/sets/{set}/records": listed}, {"list?set=a": [{"id": "1", "other": 1}]}),
        ("named", {"/sets/{set}/cards": listed}, {"list?set=a": [{"id": "1", "other": 1}]}),
        ("empty", {"/sets/{set}/records": listed}, {"list?set=a": []}),
        ("odd", {"/sets/{set}/records": listed}, {"list?set=a": "nothing", "none?x=1": [1]}),
    ]
    with every_row() as row:
        for name, paths, samples in rows:
            with row(name):
                assert not read_model("sets", document(paths), samples=samples).typed


def test_operations_of_places_are_counted_once(model: Model) -> None:
    question = PracticeQuestion(about="coverage", samples=VAULT_SAMPLES)
    coverage = practice_finding(VAULT, model.app, question).coverage
    assert coverage is not None
    assert (coverage.practised, coverage.operations, coverage.left_out) == (18, 18, [])
    locker = read_model("locker", LOCKER)
    coverage = practice_finding(
        LOCKER, locker.app, PracticeQuestion(about="coverage", samples=LOCKER_SAMPLES)
    ).coverage
    assert coverage is not None
    assert {"items/articles", "items/wines"} <= set(coverage.collections)


def test_keys_that_name_kinds_are_words() -> None:
    rows = {
        "articles": True, "line-items": True, "Invoices": True, "user_groups": True, "tbl7Qx": False,
        "9f3a": False, "anna@real.test": False, "xkcdqwr": False, "a": False, "a very long name of a thing": False,
    }  # fmt: skip
    with every_row() as row:
        for key, wanted in rows.items():
            with row(key):
                assert is_word(key) is wanted
    assert sample_key("get_records", {"set": "a b"}) == "get_records?set=a+b"


def real_vault() -> Real:
    """Seven rooms, the first of them empty, with sets of different kinds; one has a code for a name."""
    rooms: dict[str, dict[str, Json]] = {
        "scratch": {},
        "old": {},
        "blog": {"articles": _read("get_records?room_id=blog&shelf_set_id=articles"), "nothing": []},
        "archive": {"articles": _read("get_records?room_id=archive&shelf_set_id=articles")},
        "cellar": {"wines": _read("get_records?room_id=cellar&shelf_set_id=wines")},
        "9f3a77": {"tbl7Qx": [{"id": f"k-{at}", "note": f"Ring Anna, the {at}th"} for at in range(4)]},
        "hunters": {},
    }
    answers: dict[str, Json] = {"/rooms": {"data": [{"id": each, "grants_seen": 1} for each in rooms]}}
    for room, sets in rooms.items():
        answers[f"/rooms/{room}"] = {"data": {"id": room, "grants_seen": 1}, "grants": {}}
        answers[f"/rooms/{room}/shelf_sets"] = {"data": [{"id": each, "position": 3} for each in sets]}
        for name, rows in sets.items():
            place = f"/rooms/{room}/shelf_sets/{name}"
            answers[place] = {"data": {"id": name, "position": 3}}
            answers[f"{place}/records"] = {"data": rows}
            answers |= {f"{place}/records/{each['id']}": {"data": {**each, "body": "Of Anna"}} for each in rows}
    return Real(VAULT["paths"], answers)


def _read(sample: str) -> Json:
    return VAULT_SAMPLES[sample]["data"]


async def test_each_place_is_read_once_as_a_list_and_once_as_a_record() -> None:
    real = real_vault()
    readings = await real.read()
    assert not readings.skipped
    places = [place for place, _ in real.calls]
    assert len(places) == len(set(places))
    assert {each for each in places if each.endswith("/records")} == {
        f"/rooms/{room}/shelf_sets/{name}/records"
        for room, name in (
            ("blog", "articles"),
            ("blog", "nothing"),
            ("archive", "articles"),
            ("cellar", "wines"),
            ("9f3a77", "tbl7Qx"),
        )
    }
    records = [each.partition("/records/")[0] for each in places if "/records/" in each]
    assert len(records) == len(set(records)) == 4
    assert real.plans <= 5


async def test_the_names_of_kinds_and_fields_are_kept_and_nothing_of_anybody() -> None:
    real = real_vault()
    kept = samples_of(await real.read(), is_secret=lambda text: text == "cellar")
    for text in ("Anna", "9f3a77", "tbl7Qx", "cellar", "title of its own"):
        assert text not in str(kept), text
    articles = kept["get_records?room_id=blog&shelf_set_id=articles"]["data"]
    assert len(articles) == 12
    assert {"id", "last_modified", "title", "status", "words", "featured"} <= articles[0].keys()
    assert {each["status"] for each in articles} <= {"draft", "published", "archived"}
    model = real.model(kept)
    assert {each.noun: len(fields_of(each.item)) for each in model.collections.values() if each.home} == {
        "article": 9,  # with the body that only single records have
        "wine": 7,
        "record": 3,
    }
    assert [each.named for each in model.collections.values() if not each.home] == [True, True, False]
