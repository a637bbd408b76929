"""Documents as they come: what cannot be used is left out with its reason, and the rest can be called."""

import msgspec
import pytest

from app.apis.calls.arguments import bind
from app.apis.catalog import App
from app.apis.documents.protocols import encode, parse_document
from app.base.errors import HostError
from app.base.values import Json
from tests.support.document_parts import REF, answer, body, openapi

GOOD: Json = {"get": {"operationId": "list_mails"}}


def parsed_with(**paths: Json) -> App:
    return parse_document("t", openapi({"/good": GOOD, **{f"/{name}": item for name, item in paths.items()}}))


@pytest.mark.parametrize(
    ("item", "where", "reason"),
    [
        ({"get": {"parameters": [{"in": "query"}]}}, "GET /bad", "a parameter needs a name"),
        ({"get": 3}, "GET /bad", "expected an object"),
        ({"$ref": "#/nowhere"}, "/bad", "refers to something the document does not have"),
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


def test_parameters_of_documents_that_were_not_read_are_not_sent() -> None:
    unread: Json = [{"$ref": "https://b.test/x.yaml#/sort"}, {"in": "query", "name": "limit"}]
    app = parsed_with(rows={"get": {"operationId": "list_rows", "parameters": unread}})
    operation = app.operations["list_rows"]
    assert encode(app, operation, bind(operation, [], {"limit": 2})).target == "/rows?limit=2"
    [left] = app.left_out
    assert left.operation == "GET /rows"
    unsent = "'https://b.test/x.yaml#/sort' refers to another document, which was not read"
    assert left.reason == f"it is called without a parameter: {unsent}"


def test_an_empty_place_of_a_schema_says_nothing_about_the_value() -> None:
    parameters = [
        {"in": "query", "name": "a", "schema": None},
        {"in": "query", "name": "b", "schema": {"items": None}},
    ]
    content = {"application/json": {"schema": None}}
    app = parsed_with(
        rows={"post": {"operationId": "add", "parameters": parameters, "requestBody": {"content": content}}}
    )
    assert app.left_out == ()
    operation = app.operations["add"]
    for given in ({"a": 1}, [2], "x"):
        request = encode(app, operation, bind(operation, [], {"a": 1, "b": ["x"], "body": given}))
        assert (request.target, request.content) == ("/rows?a=1&b=x", msgspec.json.encode(given))


@pytest.mark.parametrize("pattern", ["/^[a-z0-9._]+$/", "/^[a-z]$/i", "/magnet:[a-z]+/i"])
def test_a_pattern_between_slashes_is_left_to_the_server(pattern: str) -> None:
    parameters = [{"in": "query", "name": "a", "schema": {"type": "string", "pattern": pattern}}]
    app = parsed_with(rows={"get": {"operationId": "find", "parameters": parameters}})
    operation = app.operations["find"]
    assert encode(app, operation, bind(operation, [], {"a": "root"})).target == "/rows?a=root"


def test_a_body_of_a_document_that_was_not_read_may_be_any_value() -> None:
    app = parsed_with(rows={"post": {"operationId": "add", "requestBody": {"$ref": "https://b.test/x.yaml#/a"}}})
    operation = app.operations["add"]
    for given in ({"a": 1}, [2]):
        assert encode(app, operation, bind(operation, [], {"body": given})).content == msgspec.json.encode(given)
    assert encode(app, operation, bind(operation, [], {})).content is None


@pytest.mark.parametrize(
    "declared",
    [
        [],
        [{"$ref": "https://b.test/x.yaml#/row"}],
        [{"in": "path", "name": "row"}, {"in": "path", "name": "row_etc"}],
    ],
)
def test_parameters_of_a_path_are_those_that_it_has_a_place_for(declared: Json) -> None:
    app = parsed_with(**{"rows/{row}": {"get": {"operationId": "get_row", "parameters": declared}}})
    operation = app.operations["get_row"]
    assert [each.name for each in operation.parameters if each.required] == ["row"]
    assert encode(app, operation, bind(operation, ["a b"], {})).target == "/rows/a%20b"
    assert app.left_out == ()
    with pytest.raises(HostError, match="row"):
        bind(operation, [], {})


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


@pytest.mark.parametrize(
    ("schema", "fits", "sent"),
    [
        ({"type": "string", "enum": [1, 2.5, True]}, "2.5", "2.5"),
        ({"type": "integer", "enum": ["1", "2"]}, 2, "2"),
        ({"type": "boolean", "enum": ["true", "false"]}, False, "false"),
        ({"type": ["integer", "null"], "enum": ["1", None]}, 1, "1"),
        ({"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]}, ["a"], "a"),
    ],
)
def test_choices_of_another_type_than_the_declared_one_can_be_made(schema: Json, fits: Json, sent: str) -> None:
    parameters = [{"in": "query", "name": "kind", "required": True, "schema": schema}]
    app = parsed_with(rows={"get": {"operationId": "list_rows", "parameters": parameters}})
    operation = app.operations["list_rows"]
    assert encode(app, operation, bind(operation, [fits], {})).target == f"/rows?kind={sent}"
    if schema["type"] != "array":
        with pytest.raises(HostError, match="is not"):
            bind(operation, ["7"], {})


def test_a_part_of_the_query_in_a_path_stays_one() -> None:
    item: Json = {"get": {"operationId": "find", "parameters": [{"in": "query", "name": "q"}]}}
    app = parse_document("t", openapi({"/rows?kind=a&by={who}": item}))
    operation = app.operations["find"]
    assert encode(app, operation, bind(operation, [], {"who": "me", "q": "x"})).target == "/rows?kind=a&by=me&q=x"
    assert encode(app, operation, bind(operation, [], {"who": "a&b"})).target == "/rows?kind=a&by=a%26b"


@pytest.mark.parametrize(("kind", "sent"), [("text/plain", "a%20b"), ("application/json", "%22a%20b%22")])
def test_a_parameter_with_content_is_sent_as_that(kind: str, sent: str) -> None:
    parameter = {"in": "query", "name": "q", "content": {kind: {"schema": {"type": "string"}}}}
    app = parsed_with(rows={"get": {"operationId": "find", "parameters": [parameter]}})
    operation = app.operations["find"]
    assert encode(app, operation, bind(operation, ["a b"], {})).target == f"/rows?q={sent}"
