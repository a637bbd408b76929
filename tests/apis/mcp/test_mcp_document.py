"""What an MCP server listed becomes operations."""

from typing import Any

import msgspec
import pytest

from app.apis.calls.arguments import bind
from app.apis.catalog import App
from app.apis.documents.protocols import encode, parse_document
from app.apis.listing import signature
from app.base.errors import ApiDocumentError, HostError

OBJECT = {"type": "object"}
NO_TOOLS: dict[str, Any] = {"mcp": "2025-11-25", "url": "http://notes.test/mcp", "tools": []}


def parsed(*tools: Any, **more: Any) -> App:
    return parse_document("notes", {**NO_TOOLS, "tools": list(tools), **more})


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": OBJECT, **fields}


def test_the_fields_of_a_tool_are_arguments_with_references_resolved() -> None:
    schema = {
        "type": "object",
        "properties": {"when": {"$ref": "#/$defs/Day"}, "class": {"type": "string"}, "n": {"default": 3}},
        "required": ["class"],
        "$defs": {"Day": {"type": "string", "enum": ["mon", "tue"]}},
    }
    returned = {"type": "object", "properties": {"id": {"type": "integer"}}}
    app = parsed(tool("addNote", description="Add a note.\nMore.", inputSchema=schema, outputSchema=returned))
    operation = app.operations["add_note"]
    assert signature(operation) == "add_note(class_, when=None, n=3) -> id: Add a note."
    with pytest.raises(HostError, match="'wed' is not one of"):
        bind(operation, [], {"class_": "a", "when": "wed"})
    request = encode(app, operation, bind(operation, ["a"], {"when": "mon"}))
    assert msgspec.json.decode(request.content or b"") == {
        "name": "addNote",
        "arguments": {"class": "a", "when": "mon"},
    }


def test_names_become_identifiers_and_collisions_are_numbered() -> None:
    app = parsed(
        tool("get-weather"), tool("getWeather"), tool("2fa"), tool("class"), tool("read_resource"), resources=True
    )
    assert {name: each.path for name, each in app.operations.items()} == {
        "get_weather": "get-weather",
        "get_weather_2": "getWeather",
        "op_2fa": "2fa",
        "class_": "class",
        "read_resource": "read_resource",
        "list_resources": "",
        "read_resource_2": "",
    }


@pytest.mark.parametrize(
    ("unusable", "reason"),
    [
        ({"inputSchema": OBJECT}, "tools/1: a tool needs a name"),
        (tool("天気"), "tools/call 天気: its name has no letter or digit that Python could call it by"),
        (tool("a" * 300), "tools/1: the name of the tool has more than 200 characters"),
        (tool("good"), "tools/call good: another tool of the server has the same name"),
        ({"name": "bare"}, "tools/call bare: a tool needs an `inputSchema`, a JSON Schema of an object"),
        (tool("list", inputSchema={"type": "array"}), "describes no object"),
        (tool("bad", inputSchema={"properties": {"a": 7}}), "expected a schema, found"),
        ("nonsense", "tools/1: expected an object"),
    ],
)
def test_a_tool_that_cannot_be_called_is_left_out_with_its_reason(unusable: Any, reason: str) -> None:
    app = parsed(tool("good"), unusable)
    assert list(app.operations) == ["good"]
    [left_out] = app.left_out
    assert reason in left_out.reason


def test_a_server_without_anything_to_call_is_refused() -> None:
    with pytest.raises(ApiDocumentError, match="neither tools nor resources"):
        parsed()
    with pytest.raises(ApiDocumentError, match="a tool needs an `inputSchema`"):
        parsed({"name": "bare"})


def test_arguments_that_are_no_fixed_fields_are_one_object() -> None:
    either = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    mapping = {"type": "object", "additionalProperties": {"type": "integer"}}
    app = parsed(tool("either", inputSchema=either), tool("count", inputSchema=mapping))
    assert signature(app.operations["either"]) == "either(arguments=None)"
    operation = app.operations["count"]
    request = encode(app, operation, bind(operation, [{"x": 1}], {}))
    assert msgspec.json.decode(request.content or b"")["arguments"] == {"x": 1}
    with pytest.raises(HostError, match="'y' is not of type 'integer'"):
        bind(operation, [{"x": "y"}], {})


def test_hints_of_a_server_decide_what_is_read_repeated_and_approved() -> None:
    hints = {
        "read": {"readOnlyHint": True, "destructiveHint": True},
        "append": {"destructiveHint": False},
        "erase": {"destructiveHint": True, "idempotentHint": True},
        "silent": {},
    }
    app = parsed(*(tool(name, annotations=each) for name, each in hints.items()))
    found = {name: (each.safe, each.repeatable, each.risk) for name, each in app.operations.items()}
    assert found == {
        "read": (True, True, None),
        "append": (False, False, "low"),
        "erase": (False, True, "high"),
        "silent": (False, False, None),
    }


def test_a_long_description_is_cut_to_its_first_sentence_where_the_signature_shows_it() -> None:
    app = parsed(tool("read", description=f"Read a file. {'It is a file. ' * 20}"))
    assert signature(app.operations["read"]) == "read(): Read a file."
    assert len(app.operations["read"].description) > 200


def test_references_that_repeat_their_targets_are_refused() -> None:
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 8):
        same = {"$ref": f"#/$defs/d{number - 1}"}
        defs[f"d{number}"] = {"type": "object", "properties": {f"p{each}": same for each in range(20)}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d7"}}, "$defs": defs}
    wide = {**schema, "properties": {f"p{each}": {"allOf": [schema, schema]} for each in range(3000)}}
    with pytest.raises(ApiDocumentError, match="the document is too large here"):
        parsed(*(tool(f"t{each}", inputSchema=wide) for each in range(300)))
