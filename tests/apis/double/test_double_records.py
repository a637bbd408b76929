"""Values drawn for schemas: they fit, they look like what their names say, and they differ."""

import re

import pytest

from app.apis.double.shapes import Fits
from app.apis.double.values import Drawer, NoValueError
from app.base.values import Json
from tests.support.every_row import every_row


def drawn(
    schema: dict[str, Json], name: str, count: int = 12, examples: dict[str, list[Json]] | None = None
) -> list[Json]:
    drawer = Drawer("seed", Fits())
    return [drawer.value(schema, name, str(number), examples or {}) for number in range(count)]


def test_a_value_fits_its_schema_and_its_name() -> None:
    text: dict[str, Json] = {"type": "string"}
    rows: list[tuple[str, dict[str, Json], str]] = [
        ("email", text, r"[a-z.]+@[a-z]+\.example\.com"),
        ("website", {**text, "format": "uri"}, r"https://\S+/\S+"),
        ("created_at", {**text, "format": "date-time"}, r"2026-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
        ("due", {**text, "format": "date"}, r"2026-\d\d-\d\d"),
        ("id", {**text, "format": "uuid"}, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("code", {**text, "pattern": "^[A-Z]{3}-[0-9]{2,4}$"}, r"[A-Z]{3}-[0-9]{2,4}"),
        ("tag", {**text, "pattern": "^(red|green)_(?:x|y)+[^a-z]$", "maxLength": 12}, r"(red|green)_[xy]+[^a-z]"),
        ("path", {**text, "pattern": r"^/\w+(/\w+)*$"}, r"/\w+(/\w+)*"),
        ("title", text, r"[A-Z][a-z]+ [a-z]+"),
        ("title", {**text, "maxLength": 5}, r".{1,5}"),
        ("note", {**text, "minLength": 90}, r".{90,}"),
        ("description", text, r"[A-Z].+\."),
        ("first_name", text, r"[A-Z][a-z]+"),
        ("state", {"enum": ["open", "closed"]}, r"open|closed"),
        ("size", {"type": "integer", "minimum": 7, "maximum": 9}, r"[789]"),
        ("size", {"type": "integer", "multipleOf": 5, "minimum": 1}, r"\d*[05]"),
        ("rate", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, r"0\.\d+"),
        ("year", {"type": "integer"}, r"(19|20)\d\d"),
        ("api_token", text, r"\*+"),
    ]
    with every_row() as row:
        for name, schema, wanted in rows:
            with row(name, schema):
                values = drawn(schema, name)
                assert [each for each in values if not re.fullmatch(wanted, str(each), re.DOTALL)] == []


def test_texts_of_one_field_differ_and_codes_have_the_form_of_an_example() -> None:
    assert len(set(drawn({"type": "string"}, "title"))) > 9
    codes = drawn({"type": "string"}, "charge", examples={"charge": ["ch_3MmlLrLkdIwHu7ix0snN0B15"]})
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"ch_[0-9][A-Za-z]{6}[A-Za-z0-9]{17}", str(each)) for each in codes)
    assert "ch_3MmlLrLkdIwHu7ix0snN0B15" not in codes


def test_an_object_has_what_it_must_and_its_times_are_in_order() -> None:
    time: dict[str, Json] = {"type": "string", "format": "date-time"}
    fields: dict[str, Json] = {
        "updated_at": time,
        "created_at": time,
        "secret": {"type": "string", "writeOnly": True},
    }
    schema: dict[str, Json] = {
        "type": "object",
        "required": ["created_at", "kind"],
        "properties": {**fields, "size": {"type": "integer", "minimum": 3}},
        "minProperties": 6,
    }
    for value in drawn(schema, "thing"):
        assert isinstance(value, dict)
        assert "secret" not in value
        assert value["kind"]
        assert value["created_at"] <= value["updated_at"]
        assert value["size"] >= 3
        assert len(value) >= 6


def test_of_alternatives_one_that_can_be_drawn_is_chosen() -> None:
    impossible: dict[str, Json] = {"type": "integer", "minimum": 3, "maximum": 2}
    schema: dict[str, Json] = {"anyOf": [impossible, {"type": "string", "enum": ["a"]}]}
    assert drawn(schema, "x", 2) == ["a", "a"]
    with pytest.raises(NoValueError, match="no value was found"):
        drawn(impossible, "x", 1)
