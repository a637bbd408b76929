"""Values go out, and come back, as the document describes them: what is on the wire."""

from pathlib import Path

import msgspec
import pytest

from app.apis.catalog import Catalog
from app.apis.documents.protocols import encode
from app.apis.listing import signature
from app.apis.look_ups import show_api_doc
from app.apis.mcp.document import MCP
from app.base.errors import HostError
from app.base.values import Json, Stop
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.every_row import every_row
from tests.support.raw_server import http_answer
from tests.support.rollout_bench import DONE, Bench
from tests.support.scripted_engine import block, byte_tokenizer
from tests.support.wire import Wire, wire

NUMBER, WHOLE, TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string"}
JSON = "application/json"


def argument(name: str, place: str, schema: Json, **more: Json) -> Json:
    return {"name": name, "in": place, "schema": schema, **more}


def parameters(*given: Json) -> Json:
    return {"parameters": list(given)}


def query(name: str, schema: Json, **more: Json) -> Json:
    return parameters(argument(name, "query", schema, **more))


def json_body(schema: Json) -> Json:
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def answers(*kinds: str, status: str = "200") -> Json:
    return {"responses": {status: {"content": {each: {} for each in kinds}}}}


def doc(to: Wire) -> Json:
    return show_api_doc(Catalog({"t": to.gateway.catalog.apps["t"]}), "t", to.operation.name)


async def test_a_whole_float_is_an_integer_where_the_document_has_integers() -> None:
    mixed, maybe, many = (
        {"type": ["integer", "number"]},
        {"type": ["integer", "null"]},
        {"type": "array", "items": WHOLE},
    )
    fields, rows_of = (
        {"properties": {"n": WHOLE, "f": NUMBER}},
        {"type": "array", "items": {"properties": {"n": WHOLE}}},
    )
    either = {"anyOf": [TEXT, {"additionalProperties": WHOLE}]}
    rows: list[tuple[str, Json, dict[str, Json], str, bytes]] = [
        ("/x", query("n", WHOLE), {"n": 4 / 2}, "GET /x?n=2", b""),
        ("/x", query("n", NUMBER), {"n": 2.0}, "GET /x?n=2.0", b""),
        ("/x", query("n", mixed), {"n": 2.0}, "GET /x?n=2.0", b""),
        ("/x", query("n", maybe), {"n": -0.0}, "GET /x?n=0", b""),
        ("/x", query("n", many), {"n": [1.0, 2]}, "GET /x?n=1&n=2", b""),
        ("/x/{id}", parameters(argument("id", "path", WHOLE)), {"id": 7.0}, "GET /x/7", b""),
        ("/x", json_body(fields), {"n": 2.0, "f": 2.0}, "GET /x", b'{"n":2,"f":2.0}'),
        ("/x", json_body(rows_of), {"body": [{"n": 3.0}]}, "GET /x", b'[{"n":3}]'),
        ("/x", json_body(either), {"body": {"a": 1.0}}, "GET /x", b'{"a":1}'),
        ("/x", json_body({"anyOf": [WHOLE, NUMBER]}), {"body": 1.0}, "GET /x", b"1.0"),
        ("/x", json_body({}), {"body": {"a": 1.0}}, "GET /x", b'{"a":1.0}'),
    ]
    with every_row() as row:
        for path, node, arguments, line, body in rows:
            async with wire(node, path=path) as to:
                with row(str(node), str(arguments)):
                    received = await to.sent(**arguments)
                    assert (received.line, received.body) == (line, body)
    async with wire(parameters(argument("n", "header", WHOLE))) as to:
        assert (await to.sent(n=5.0)).headers["n"] == "5"
        with pytest.raises(HostError, match=r"2\.5 is not of type 'integer'"):
            await to.sent(n=2.5)


async def test_a_required_argument_with_one_possible_value_or_a_default_is_sent_unasked() -> None:
    one: dict[str, Json] = {"type": "boolean", "default": True}
    async with wire(parameters(argument("OCS-APIRequest", "header", one, required=True))) as to:
        assert (await to.sent()).headers["ocs-apirequest"] == "true"
        assert (await to.sent(OCS_APIRequest=None)).headers["ocs-apirequest"] == "true"
        assert (await to.sent(OCS_APIRequest=False)).headers["ocs-apirequest"] == "false"
        assert signature(to.operation) == "get_x(OCS_APIRequest=True)"
        assert [(each["required"], each["default"]) for each in doc(to)["parameters"]] == [(False, True)]
        assert to.gateway.take_calls()[0].arguments == {}, "the record has what the code gave"
    kind: dict[str, Json] = {"properties": {"kind": {"const": "a"}}}
    rows: list[tuple[str, str, Json, str, bytes]] = [
        ("get", "/x", query("v", {"const": "2"}, required=True), "GET /x?v=2", b""),
        ("get", "/x", query("v", {"enum": ["2"], "type": "string"}, required=True), "GET /x?v=2", b""),
        ("get", "/x", query("v", {"default": "2"}), "GET /x", b""),
        ("get", "/{v}/x", parameters(argument("v", "path", {"default": "v2"})), "GET /v2/x", b""),
        ("delete", "/{v}/x", parameters(argument("v", "path", {"enum": ["v2"]})), "DELETE /v2/x", b""),
        ("post", "/x", json_body({**kind, "required": ["kind"]}), "POST /x", b'{"kind":"a"}'),
        ("post", "/x", json_body(kind), "POST /x", b"{}"),
    ]
    with every_row() as row:
        for method, path, node, line, body in rows:
            async with wire(node, method=method, path=path) as to:
                with row(line, str(node)):
                    received = await to.sent()
                    assert (received.line, received.body) == (line, body)
        with row("a tool"):
            given = {"type": "object", "properties": {"v": {"const": 2}, "n": WHOLE}, "required": ["v"]}
            tool = MCP.parse(
                "m",
                {"mcp": "1", "url": "http://a.test", "tools": [{"name": "t", "inputSchema": given}]},
                None,
                None,
            )
            sent = encode(msgspec.structs.replace(tool, protocol="mcp"), tool.operations["t"], {"n": 1.0}).content
            assert sent == b'{"name":"t","arguments":{"v":2,"n":1}}'
        for method, path, schema in [
            ("get", "/x", {"type": "boolean", "default": "true"}),
            ("get", "/x", {"enum": [1, 2], "default": 3}),
            ("get", "/x", {"default": None}),
            ("delete", "/x/{v}", {"type": "integer", "default": 1}),
        ]:
            place = "path" if "{" in path else "query"
            async with wire(
                parameters(argument("v", place, schema, required=True)), method=method, path=path
            ) as to:
                with row(path, str(schema)), pytest.raises(HostError, match="missing the required argument 'v'"):
                    await to.sent()


async def test_accept_follows_the_answers_of_the_operation() -> None:
    usual = "application/json, text/*;q=0.9, */*;q=0.1"
    octets = "application/octet-stream"
    accept = argument("Accept", "header", {"type": "string", "enum": [octets]}, required=True)
    hub, data = "application/vnd.github+json", "application/json;odata=verbose"
    github = argument("accept", "header", {"type": "string", "default": hub})
    rows: list[tuple[Json, str]] = [
        ({**answers(octets), **parameters(accept)}, f"{octets}, application/json;q=0.9, */*;q=0.1"),
        (answers(octets), f"{octets}, application/json;q=0.9, */*;q=0.1"),
        (answers(JSON), usual),
        (answers("*/*"), usual),
        (answers("application/json; charset=utf-8"), usual),
        (answers("text/html", status="default"), usual),
        ({}, usual),
        (answers("application/xml", JSON), "application/json, application/xml;q=0.9, */*;q=0.1"),
        (answers("application/vnd.api+json"), "application/vnd.api+json, application/json;q=0.9, */*;q=0.1"),
        (answers("image/*"), "image/*, application/json;q=0.9, */*;q=0.1"),
        (answers(data), f"{data}, application/json;q=0.9, */*;q=0.1"),
        ({**answers(JSON), **parameters(github)}, f"{hub}, application/json;q=0.9, */*;q=0.1"),
        (answers("no type", "a/b\r\nEvil: 1"), usual),
    ]  # fmt: skip
    with every_row() as row:
        for node, header in rows:
            async with wire(node) as to:
                with row(str(node)):
                    assert (await to.sent()).headers["accept"] == header
                    assert to.operation.parameters == ()
    produced = {"produces": ["text/csv"], "responses": {"200": {"description": "a file"}}}
    async with wire(produced, document={"swagger": "2.0", "produces": [JSON]}) as to:
        assert (await to.sent()).headers["accept"] == "text/csv, application/json;q=0.9, */*;q=0.1"
    async with wire(answers("text/csv", JSON)) as to:
        assert to.operation.returns == {}, "what is described is what is asked for first"


async def test_names_that_differ_in_operators_stay_apart_and_show_their_name_on_the_wire() -> None:
    rows: list[tuple[list[str], list[str]]] = [
        (["Start", "Start<", "Start>"], ["Start", "Start_lt", "Start_gt"]),
        (["a<", "a<=", "a>=", "a!=", "a="], ["a_lt", "a_lte", "a_gte", "a_ne", "a_eq"]),
        (["a[<]", "a[>=]", "a[]"], ["a_lt", "a_gte", "a"]),
        (["!a", "a", "~a"], ["not_a", "a", "like_a"]),
        (["+1", "-1", "1"], ["plus_1", "minus_1", "x_1"]),
        (["X-A", "a-b", "$filter", "from"], ["X_A", "a_b", "filter", "from_"]),
    ]
    with every_row() as row:
        for wired, named in rows:
            async with wire(parameters(*(argument(each, "query", TEXT) for each in wired))) as to:
                with row(str(wired)):
                    assert list(to.operation.arguments) == named
                    shown = doc(to)["parameters"]
                    assert [each.get("sent_as", each["name"]) for each in shown] == wired
    async with wire(parameters(argument("Start<", "query", TEXT), argument("Start>", "query", TEXT))) as to:
        assert (await to.sent(Start_lt="1", Start_gt="0")).line == "GET /x?Start%3C=1&Start%3E=0"


async def test_each_style_of_a_path_is_written_as_its_specification_has_it() -> None:
    many, pairs = ["b", "c/d"], {"r": "1", "g": "2"}
    rows: list[tuple[str, bool | None, Json, str]] = [
        ("matrix", None, "1", "/x/;a=1"), ("matrix", None, "", "/x/;a"), ("matrix", True, "1", "/x/;a=1"),
        ("matrix", None, many, "/x/;a=b,c%2Fd"), ("matrix", True, many, "/x/;a=b;a=c%2Fd"),
        ("matrix", None, pairs, "/x/;a=r,1,g,2"), ("matrix", True, pairs, "/x/;r=1;g=2"),
        ("label", None, "1", "/x/.1"), ("label", None, many, "/x/.b,c%2Fd"), ("label", True, many, "/x/.b.c%2Fd"),
        ("label", None, pairs, "/x/.r,1,g,2"), ("label", True, pairs, "/x/.r=1.g=2"),
        ("simple", None, many, "/x/b,c%2Fd"), ("simple", None, pairs, "/x/r,1,g,2"),
        ("simple", True, pairs, "/x/r=1,g=2"),
        ("deepObject", None, "1", "/x/1"), ("form", None, many, "/x/b,c%2Fd"), ("odd", None, "1", "/x/1"),
    ]  # fmt: skip
    with every_row() as row:
        for style, explode, value, target in rows:
            more = {} if explode is None else {"explode": explode}
            async with wire(parameters(argument("a", "path", {}, style=style, **more)), path="/x/{a}") as to:
                with row(style, explode, str(value)):
                    assert (await to.sent(a=value)).line == f"GET {target}"
        for style, value in [("label", "."), ("label", ""), ("simple", ".."), ("label", "%2e"), ("matrix", [])]:
            more = {"explode": True} if value == [] else {}
            async with wire(parameters(argument("a", "path", {}, style=style, **more)), path="/x/{a}") as to:
                with row(style, str(value)), pytest.raises(HostError, match="cannot be part of an address"):
                    await to.sent(a=value)


async def test_an_unusual_or_misplaced_style_never_costs_the_operation() -> None:
    many = ["b", "c d"]
    rows: list[tuple[str, Json, Json, str, str]] = [
        ("query", "matrix", many, "GET /x?a=b%2Cc%20d", ""),
        ("query", "simple", many, "GET /x?a=b%2Cc%20d", ""),
        ("query", "odd", many, "GET /x?a=b&a=c%20d", ""),
        ("query", 7, "1", "GET /x?a=1", ""),
        ("header", "form", "1", "GET /x", "a: 1"),
        ("header", "pipeDelimited", ["1", "2"], "GET /x", "a: 1,2"),
        ("cookie", "form", "x=y z", "GET /x", "cookie: a=x%3Dy%20z"),
        ("cookie", "cookie", "x=y%20", "GET /x", "cookie: a=x=y%20"),
        ("cookie", "cookie", "x; b=1", "GET /x", "cookie: a=x%3B%20b%3D1"),
        ("cookie", "cookie", ["1", "2"], "GET /x", "cookie: a=1; a=2"),
        ("cookie", "deepObject", "1", "GET /x", "cookie: a=1"),
    ]
    with every_row() as row:
        for place, style, value, line, header in rows:
            async with wire(parameters(argument("a", place, {}, style=style))) as to:
                with row(place, style, str(value)):
                    received = await to.sent(a=value)
                    assert received.line == line
                    name, _, text = header.partition(": ")
                    assert received.headers.get(name, "") == text


async def test_numbers_that_json_lacks_cost_no_answer_and_the_observation_says_so(tmp_path: Path) -> None:
    rows: list[tuple[bytes, Json]] = [
        (b'{"n": NaN}', {"n": None}),
        (b'[Infinity, -Infinity, 1, NaN]', [None, None, 1, None]),
        (b'{"NaN": "a \\"NaN\\" \\\\", "m": NaN}', {"NaN": 'a "NaN" \\', "m": None}),
        (b"NaN", None),
    ]  # fmt: skip
    with every_row() as row:
        for body, value in rows:
            async with wire({}) as to:
                to.server.answers = {"GET /x": http_answer(body, f"Content-Type: {JSON}")}
                with row(body):
                    answer = await to.gateway.answer_call("t.get_x", [], {})
                    assert (answer.value, answer.remark) == (
                        value,
                        "NaN and Infinity, which JSON lacks, are None here",
                    )
        for body in (b'{"n": "NaN, -Infinity"}', b'{"n": 1}'):
            async with wire({}) as to:
                to.server.answers = {"GET /x": http_answer(body, f"Content-Type: {JSON}")}
                with row(body):
                    assert (await to.gateway.answer_call("t.get_x", [], {})).remark == ""
        for body in (b'{"n": xNaN}', b'{"n": NaN', b'"' + b'\\"' * 500_000 + b" NaN"):
            async with wire({}) as to:
                to.server.answers = {"GET /x": http_answer(body, f"Content-Type: {JSON}")}
                with row(body[:20]), pytest.raises(HostError, match="not the JSON it claims"):
                    await to.sent()
    async with wire({}) as to, ForkedSandbox(bwrap=False) as sandbox:
        to.server.answers = {"GET /x": http_answer(b'{"n": NaN}', f"Content-Type: {JSON}")}
        bench = Bench(sandbox, byte_tokenizer(tmp_path))
        bench.ledger.gateway = lambda *_, **__: to.gateway  # type: ignore[method-assign]
        ended = await bench.run(block(f"print(apis.t.get_x())\n{DONE}"))
    assert ended.stop == Stop.COMPLETED
    assert (
        ended.turns[0].observation == "[t.get_x: NaN and Infinity, which JSON lacks, are None here]\n{'n': None}"
    )
    assert ended.calls[0].result == {"n": None}
