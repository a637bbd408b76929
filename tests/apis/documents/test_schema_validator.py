"""Validation of arguments at limited cost: the messages of jsonschema, and none of its worst cases."""

import random
from collections.abc import Callable

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from app.apis.calls.arguments import bind
from app.apis.catalog import Operation, Parameter
from app.apis.documents.schemas import Check, start_counting
from app.base.errors import HostError
from app.base.values import Json
from tests.support.processor_time import within


def operation(schema: dict[str, Json]) -> Operation:
    value = Parameter(name="value", wire_name="value", place="body", required=True, schema=schema)
    return Operation(app="a", name="send", method="POST", path="/", summary="", parameters=(value,))


def refusal(schema: dict[str, Json], value: Json) -> str:
    """The message, which must come within a moment."""
    checked = operation(schema)
    with within(), pytest.raises(HostError) as caught:
        bind(checked, [value], {})
    assert caught.value.kind == "ValidationError"
    return caught.value.message.removeprefix("send() argument 'value': ")


def accepts(schema: dict[str, Json], value: Json) -> None:
    with within():
        bind(operation(schema), [value], {})


TOO_COMPLEX = "it takes too long to check against its schema; pass less at once"


def nested(word: str, depth: int, width: int) -> dict[str, Json]:
    """A schema of few objects that unfolds to width ** depth of them."""
    schema: dict[str, Json] = {"type": "object", "required": ["x"]}
    for _ in range(depth):
        schema = {word: [schema] * width}
    return schema


def chain(word: str, depth: int) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "string"}
    for _ in range(depth):
        schema = {word: schema if word == "not" else [schema]}
    return schema


def test_patterns_take_time_linear_in_the_text() -> None:
    text = "a" * 50_000 + "!"
    assert refusal({"pattern": "^(a+)+$"}, text).endswith("...")
    assert refusal({"pattern": "^(a|aa)+$", "maxLength": 9}, text)
    accepts({"patternProperties": {"^(a+)+$": False}}, {text: 1})
    assert refusal({"pattern": "(.*a){40}.{12}b"}, "a" * 3_000_000) == TOO_COMPLEX


def test_unique_items_take_time_linear_in_the_list() -> None:
    rows = [{"n": number, "tags": ["a", number / 2]} for number in range(2000)]
    accepts({"uniqueItems": True}, rows)
    assert refusal({"uniqueItems": True}, [*rows, {"tags": ["a", 5.0], "n": 10.0}])
    assert "non-unique" in refusal({"uniqueItems": True}, [{"a": 1, "b": 2.0}, {"b": 2, "a": 1.0}])
    accepts({"uniqueItems": True}, [1, True, 0, False, "1", [1], [True], None])
    same_hash = [number * (2**61 - 1) for number in range(10_000)]
    accepts({"uniqueItems": True}, same_hash)


def test_multiples_are_those_of_the_numbers_as_they_are_written() -> None:
    for hundredths in range(1, 10_001):
        accepts({"multipleOf": 0.01}, hundredths / 100)
    assert refusal({"multipleOf": 0.01}, 0.075) == "0.075 is not a multiple of 0.01"
    assert refusal({"multipleOf": 2}, 9007199254740993) == "9007199254740993 is not a multiple of 2"
    accepts({"multipleOf": 1e-7}, 3e-7)
    accepts({"multipleOf": 5e-324}, 1e308)
    accepts({"multipleOf": 1e308}, -1e308)
    assert refusal({"multipleOf": 1e308}, 5e-324) == "5e-324 is not a multiple of 1e+308"
    assert refusal({"items": {"multipleOf": 5e-324}}, [1e308] * 10_000) == TOO_COMPLEX


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (nested("anyOf", 8, 20), {}),
        (nested("allOf", 8, 20), {"x": 1}),
        (nested("anyOf", 20, 2), "x"),
        ({"items": nested("anyOf", 3, 20)}, [{}] * 1000),
        ({"contains": nested("anyOf", 2, 50)}, [{}] * 1000),
        ({"propertyNames": {"pattern": "z"}}, {f"k{number}": 1 for number in range(100_000)}),
        ({"enum": [[[1] * 100] * 10] * 1000}, [[1] * 100] * 9),
        (
            {"patternProperties": {f"a{number}b": {} for number in range(2000)}},
            dict.fromkeys(map(str, range(2000)), 1),
        ),
        ({"anyOf": [{"type": "string"}] * 500}, [["long text"] * 100] * 1000),
        (chain("not", 600), "x"),
        (chain("anyOf", 600), "x"),
    ],
    ids=lambda _: "",
)
def test_what_takes_too_long_to_check_is_refused(schema: dict[str, Json], value: Json) -> None:
    assert refusal(schema, value) == TOO_COMPLEX


def test_a_message_that_would_show_an_endless_schema_is_cut() -> None:
    endless: dict[str, Json] = {}
    for _ in range(40):
        endless = {"properties": {"a": endless, "b": endless}}
    assert refusal({"not": endless}, 1).startswith("1 should not be valid under {'properties': {'a': {'prop")


def test_the_steps_are_those_of_one_call() -> None:
    checked = operation({"items": {"type": "integer"}})
    for _ in range(5):
        bind(checked, [list(range(20_000))], {})


def test_messages_and_verdicts_are_those_of_jsonschema() -> None:
    pick = random.Random(7)
    for _ in range(1500):
        schema, value = _schema(pick, 3), _value(pick, 3)
        start_counting()
        check = Check(schema)
        plain = best_match(Draft202012Validator(schema).iter_errors(value))
        assert check.accepts(value) == (plain is None), (schema, value)
        found = check.error(value)
        assert (found and (found.message[:300], list(found.absolute_path))) == (
            plain and (plain.message[:300], list(plain.absolute_path))
        ), (schema, value)


def _value(pick: random.Random, depth: int) -> Json:
    kind = pick.randrange(8 if depth else 6)
    if kind == 6:
        return [_value(pick, depth - 1) for _ in range(pick.randrange(4))]
    if kind == 7:
        return {pick.choice("abc"): _value(pick, depth - 1) for _ in range(pick.randrange(3))}
    return pick.choice([None, True, False, 0, 1, 1.0, 2, 2.5, -3, "", "a", "ab", "b1", "2020"])


def _schema(pick: random.Random, depth: int) -> dict[str, Json]:
    def sub() -> dict[str, Json]:
        return _schema(pick, depth - 1)

    words: dict[str, Callable[[], Json]] = {
        "type": lambda: pick.choice(
            ["string", "integer", "number", "array", "object", "boolean", ["null", "string"]]
        ),
        "enum": lambda: [_value(pick, 1) for _ in range(3)],
        "const": lambda: _value(pick, 1),
        "minimum": lambda: pick.choice([0, 1.5]),
        "multipleOf": lambda: pick.choice([2, 0.5]),
        "maxLength": lambda: 1,
        "pattern": lambda: pick.choice(["^a", r"\d", "b$", "^(a|b)+$", r"[^\w]"]),
        "uniqueItems": lambda: True,
        "minItems": lambda: 2,
        "required": lambda: ["a"],
        "maxProperties": lambda: 1,
    }
    if depth:
        words |= {
            "items": sub,
            "contains": sub,
            "prefixItems": lambda: [sub()],
            "properties": lambda: {"a": sub(), "b": sub()},
            "patternProperties": lambda: {"^[ab]": sub()},
            "additionalProperties": lambda: pick.choice([False, sub()]),
            "propertyNames": sub,
            "anyOf": lambda: [sub(), sub()],
            "allOf": lambda: [sub()],
            "not": sub,
        }
    return {word: words[word]() for word in pick.sample(sorted(words), pick.randrange(1, 4))}
