"""A double beside the real server: what it learns from real answers, and how its own differ from them."""

import json
from typing import Any

from app.apis.double.model import Model, read_model
from app.apis.double.reads import Given, Pair, differences
from app.apis.double.service import Double, Options
from app.apis.double.state import Sampled, sampled
from app.base.values import Json
from tests.support.double_documents import answer, document, path, query
from tests.support.every_row import every_row

_TEXT: dict[str, Json] = {"type": "string"}
_ORDER: dict[str, Json] = {
    "type": "object",
    "required": ["id", "number", "note"],
    "properties": {
        "id": {"type": "integer"},
        "number": _TEXT,
        "note": _TEXT,
        "channel": _TEXT,
        "customer": _TEXT,
        "email": _TEXT,
        "api_token": _TEXT,
        "total": {"type": "number"},
        "placed": _TEXT,
        "discount": {"type": "number", "nullable": True},
        "gift_card": _TEXT,
    },
}
_LISTED = {
    "type": "object",
    "properties": {"orders": {"type": "array", "items": _ORDER}, "count": {"type": "integer"}},
}
_LIST = [query("limit", type="integer"), query("offset", type="integer")]
_PATHS: dict[str, Any] = {
    "/orders": {"get": {"parameters": _LIST, "responses": {"200": answer(_LISTED)}}},
    "/orders/{id}": {"get": {"parameters": [path("id", type="integer")], "responses": {"200": answer(_ORDER)}}},
}
_REAL: list[dict[str, Json]] = [
    {
        "id": number,
        "number": f"NL-2026-{number}",
        "channel": "shop" if number % 2 else "phone",
        "customer": "Anna Meier",
        "email": "anna.meier@real.test",
        "api_token": "tok-9f8e7d6c",
        "total": 10.5 * number,
        "placed": f"2026-05-{number:02}",
    }
    for number in range(1, 9)
]


def shop() -> tuple[Model, str, str]:
    """The model, and the names of its list and of its reading of one."""
    model = read_model("shop", document(_PATHS))
    by_role = {each.role: name for name, each in model.operations.items()}
    return model, by_role["list"], by_role["get"]


def learned(model: Model, listing: str, reading: str) -> Sampled:
    one = {**_REAL[0], "note": "Ring twice at Anna's"}
    return sampled(model, {listing: {"orders": _REAL, "count": 8}, reading: one})


def test_lists_and_records_have_the_fields_and_forms_that_real_ones_have() -> None:
    model, listing, reading = shop()
    double = Double(model, "seed", seen=learned(model, listing, reading))
    rows = double.respond("GET", "/orders").value["orders"]
    assert len(rows) > 3
    for row in rows:
        assert "note" not in row  # though the document requires it
        assert "gift_card" not in row
        assert row["channel"] in ("shop", "phone")
        assert row["number"][2:8].count("-") == 2
        assert 10.5 <= row["total"] <= 84
        assert len(row["placed"]) == 10
    one = double.respond("GET", f"/orders/{rows[0]['id']}").value
    assert one["note"]
    assert "gift_card" not in one


def test_nothing_personal_or_secret_of_real_answers_is_kept() -> None:
    model, listing, reading = shop()
    seen = learned(model, listing, reading)
    double = Double(model, "seed", seen=seen)
    kept = str(seen) + str(double.state)
    for text in ("Anna", "Meier", "real.test", "9f8e7d6c", "Ring twice", "NL-2026"):
        assert text not in kept, text
    assert all("@" in each.fields["email"] for each in double.state.records["orders"].values())


def test_a_text_that_is_a_secret_is_not_kept_whatever_its_field_is_called() -> None:
    model, listing, _ = shop()
    rows = [{"id": number, "channel": "hunter2"} for number in range(5)]
    kept = sampled(model, {listing: {"orders": rows}}, is_secret=lambda text: text == "hunter2")
    assert "hunter2" not in str(kept)


def test_differences_of_form_are_told_in_words_and_values_are_not_compared() -> None:
    model, listing, reading = shop()
    ours = {"orders": [{"id": 1, "number": "a", "note": "b", "total": 4}], "count": 1}
    one = {"id": 1, "number": "a", "total": 4}
    pairs: list[tuple[str, str, Json, Json, dict[str, Json], str]] = [
        ("alike", listing, ours, {"orders": [{"id": 9, "number": "z", "note": "", "total": 7.5}], "count": 5}, {},
         ""),
        ("lacking", listing, ours, {"orders": [{"id": 9, "number": "z", "total": 1}], "count": 5}, {},
         "the real server leaves out note of records of the list"),
        ("more", reading, one, {**one, "tax": 3}, {}, "the real server also has tax"),
        ("type", reading, one, {**one, "id": "x-1"}, {}, "id is a text at the real server, a number"),
        ("envelope", listing, ours, {"data": ours["orders"]}, {}, "the real one is under data"),
        ("bare", listing, ours, ours["orders"], {}, "the list, under orders, is nothing at the real server"),
        ("null", reading, {**one, "discount": None}, {**one, "discount": 3}, {}, ""),
        ("empty", listing, ours, {"orders": [], "count": 0}, {}, ""),
        ("around", listing, ours, {"orders": ours["orders"]}, {}, "the real server leaves out count"),
    ]  # fmt: skip
    with every_row() as row:
        for name, operation, double, real, arguments, said in pairs:
            with row(name):
                found = differences(model, [Pair(operation, Given(200, double), Given(200, real), arguments)])
                assert (found == []) == (said == "")
                assert said in " ".join(found)
                assert all(each.startswith("GET /orders") for each in found)
    [status] = differences(model, [Pair(listing, Given(200, ours), Given(403, {}))])
    assert status == "GET /orders: the real server answers with status 403, the double with 200"


def test_a_double_that_learned_differs_in_nothing_from_what_it_learned() -> None:
    model, listing, reading = shop()
    before, after = Double(model, "seed"), Double(model, "seed", seen=learned(model, listing, reading))

    def found(double: Double) -> list[str]:
        return differences(
            model, [Pair(listing, Given(200, double.respond("GET", "/orders").value), Given(200, real))]
        )

    real = {"orders": _REAL, "count": 8}
    assert found(before) == [
        "GET /orders: the real server leaves out note, discount, gift_card of records of the list"
    ]
    assert found(after) == []


def test_lists_may_be_thinner_than_records_but_keep_what_is_required() -> None:
    model, _, _ = shop()
    lacking: set[str] = set()
    for seed in "abcdef":
        double = Double(model, seed, Options(thin_lists=True))
        rows = double.respond("GET", "/orders").value["orders"]
        one = double.respond("GET", f"/orders/{rows[0]['id']}").value
        assert {"id", "number", "note"} <= rows[0].keys() <= one.keys()
        lacking |= one.keys() - rows[0].keys()
    assert len(lacking) > 2
    assert json.dumps(double.respond("GET", "/orders").value) == json.dumps(
        Double(model, "f", Options(thin_lists=True)).respond("GET", "/orders").value
    )
