"""Documents as they come: what cannot be used is left out with its reason, and the rest can be called."""

import pytest

from app.apis.api_documents import parse_document
from app.apis.bind_arguments import bind
from app.apis.catalog import App
from app.errors import HostError
from app.records import Json
from tests.document_parts import REF, answer, body, openapi

GOOD: Json = {"get": {"operationId": "list_mails"}}


def parsed_with(**paths: Json) -> App:
    return parse_document("t", openapi({"/good": GOOD, **{f"/{name}": item for name, item in paths.items()}}))


@pytest.mark.parametrize(
    ("item", "where", "reason"),
    [
        ({"get": {"parameters": [{"in": "query"}]}}, "GET /bad", "a parameter needs a name"),
        ({"get": 3}, "GET /bad", "expected an object"),
        ({"$ref": "#/nowhere"}, "/bad", "refers to something the document does not have"),
        ({"post": {"requestBody": {"$ref": "x.yaml#/a"}}}, "POST /bad", "refers to another document"),
        ({"get": {"x-safe": "perhaps"}}, "GET /bad", "`x-safe` is true or false"),
        ({"get": {"servers": [{}]}}, "GET /bad", "a server needs a url"),
    ],
)
def test_an_operation_that_cannot_be_used_is_left_out_with_its_reason(item: Json, where: str, reason: str) -> None:
    app = parsed_with(bad=item)
    assert list(app.operations) == ["list_mails"]
    [left] = app.left_out
    assert left.operation == where
    assert reason in left.reason


@pytest.mark.parametrize(
    "responses", [3, {"200": 3}, {"200": {"$ref": "#/nowhere"}}, answer({"$ref": "#/x"})["responses"]]
)
def test_a_response_that_cannot_be_read_costs_nothing(responses: Json) -> None:
    app = parsed_with(other={"get": {"operationId": "other", "responses": responses}})
    assert (app.operations["other"].returns, app.left_out) == ({}, ())


CAT: Json = {"type": "object", "properties": {"kind": {"type": "string"}, "lives": {"type": "integer"}}}
DOG: Json = {"type": "object", "properties": {"kind": {"type": "string"}, "tricks": {"type": "array"}}}


def accepts(schema: Json, value: Json) -> bool:
    whole = openapi(
        {"/pets": {"post": {"operationId": "add", **body({"type": "array", "items": schema})}}}, Cat=CAT, Dog=DOG
    )
    try:
        bind(parse_document("t", whole).operations["add"], [[value]], {})
    except HostError:
        return False
    return True


PETS: list[Json] = [{"$ref": f"{REF}Cat"}, {"$ref": f"{REF}Dog"}]


def test_without_a_discriminator_several_branches_may_fit() -> None:
    assert accepts({"oneOf": PETS}, {"kind": "Cat"})
    assert not accepts({"oneOf": PETS}, {"lives": "nine", "tricks": 3})


@pytest.mark.parametrize(
    ("mapping", "cat"), [({}, "Cat"), ({"mapping": {"feline": f"{REF}Cat", "canine": "Dog"}}, "feline")]
)
def test_a_discriminator_decides_which_branch_must_fit(mapping: dict[str, Json], cat: str) -> None:
    schema: Json = {"oneOf": PETS, "discriminator": {"propertyName": "kind", **mapping}}
    assert accepts(schema, {"kind": cat, "lives": 9})
    assert not accepts(schema, {"kind": cat, "lives": "nine"})
    assert not accepts(schema, {"kind": "hamster"})
    assert not accepts(schema, {"lives": 9})


def test_a_branch_that_names_its_values_itself_is_left_as_it_is() -> None:
    fish: Json = {"type": "object", "properties": {"kind": {"const": "fish"}}, "required": ["kind"]}
    whole = {**openapi({}, Cat=CAT, Fish=fish)}
    schema: Json = {
        "oneOf": [{"$ref": f"{REF}Cat"}, {"$ref": f"{REF}Fish"}],
        "discriminator": {"propertyName": "kind"},
    }
    whole["paths"] = {"/pets": {"post": {"operationId": "add", **body({"type": "array", "items": schema})}}}
    operation = parse_document("t", whole).operations["add"]
    assert bind(operation, [[{"kind": "fish"}]], {})


def test_oneof_beside_anyof_holds_as_well() -> None:
    schema: Json = {"anyOf": [{"required": ["kind"]}], "oneOf": PETS}
    assert accepts(schema, {"kind": "x"})
    assert not accepts(schema, {"lives": 9})
