"""Bodies of requests by media type: what the code passes, and the bytes that are sent."""

import re
from urllib.parse import parse_qsl, unquote_plus

import pytest

from app.apis.calls.arguments import bind
from app.apis.catalog import App, Catalog, Parameter
from app.apis.documents.protocols import encode, parse_document
from app.apis.look_ups import show_api_doc
from app.apis.values import takes_bytes
from app.base.errors import HostError
from app.base.values import Json
from tests.support.document_parts import openapi
from tests.support.every_row import every_row
from tests.support.processor_time import within

_PAIR = {"type": "object", "title": "Pair", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
_LIST = {"type": "array", "items": _PAIR}
_FILE = {"type": "string", "format": "binary"}


def app_with(media_type: str, media: dict[str, Json]) -> App:
    body = {"required": True, "content": {media_type: media}}
    return parse_document("t", openapi({"/x": {"post": {"operationId": "send", "requestBody": body}}}))


def sent(media_type: str, schema: Json, value: Json) -> tuple[str, bytes | None]:
    app = app_with(media_type, {"schema": schema})
    operation = app.operations["send"]
    request = encode(app, operation, bind(operation, [], {"body": value}))
    return request.headers["Content-Type"], request.content


def test_text_of_another_format_is_sent_as_the_code_wrote_it() -> None:
    with every_row() as row:
        for schema in [_PAIR, _LIST, {"oneOf": [_PAIR, _LIST]}, {}]:
            for media_type in ["application/xml", "text/csv", "application/yaml", "application/soap+xml"]:
                with row(schema, media_type):
                    assert sent(media_type, schema, "<a>é</a>") == (
                        f"{media_type}; charset=utf-8",
                        "<a>é</a>".encode(),
                    )
                    assert sent(media_type, schema, b"\xff") == (media_type, b"\xff")
                    with pytest.raises(
                        HostError, match=r"argument 'body': \{'a': 'x', 'b': 1\} is not of type 'string'"
                    ):
                        sent(media_type, schema, {"a": "x", "b": 1})


def test_the_structure_of_text_is_described() -> None:
    (body,) = app_with("application/xml", {"schema": _PAIR}).operations["send"].parameters
    assert body.description == "application/xml, as text or bytes: Pair, object with a, b"


@pytest.mark.parametrize(
    ("declared", "schema"),
    [
        ("application/octet-stream", _PAIR),
        ("image/*", {}),
        ("*/*", _FILE),
        ("*/*", {"anyOf": [_FILE, {"type": "null"}]}),
    ],
)
def test_files_are_sent_as_they_are(declared: str, schema: Json) -> None:
    assert sent(declared, schema, b"\x00\xff") == ("application/octet-stream", b"\x00\xff")
    with pytest.raises(HostError, match="bytes is not JSON"):
        sent(declared, schema, [b"\x00", b"\xff"])


@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        ("application/x-ndjson", b'{"a":"x"}\n{"b":2}\n'),
        ("application/jsonl", b'{"a":"x"}\n{"b":2}\n'),
        ("application/json-seq", b'\x1e{"a":"x"}\n\x1e{"b":2}\n'),
    ],
)
@pytest.mark.parametrize("media", [{"schema": _PAIR}, {"schema": _LIST}, {"itemSchema": _PAIR}])
def test_lines_of_json_are_a_list(media_type: str, content: bytes, media: dict[str, Json]) -> None:
    app = app_with(media_type, media)
    operation = app.operations["send"]
    request = encode(app, operation, bind(operation, [], {"body": [{"a": "x"}, {"b": 2}]}))
    assert (request.headers["Content-Type"], request.content) == (media_type, content)
    with pytest.raises(HostError, match="is not of type"):
        bind(operation, [], {"body": [{"b": "two"}]})


@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        ("application/json", b'{"a":"x","b":1}'),
        ("application/vnd.pair+json; version=2", b'{"a":"x","b":1}'),
        ("text/json", b'{"a":"x","b":1}'),
        ("application/x-www-form-urlencoded", b"a=x&b=1"),
    ],
)
def test_fields_of_json_and_forms_are_arguments(media_type: str, content: bytes) -> None:
    app = app_with(media_type, {"schema": _PAIR})
    operation = app.operations["send"]
    request = encode(app, operation, bind(operation, [], {"a": "x", "b": 1}))
    assert (request.headers["Content-Type"], request.content) == (media_type, content)


def test_nested_values_of_a_form_have_names_where_the_document_says_so() -> None:
    fields = {name: {"type": kind} for name, kind in (("card", "object"), ("items", "array"), ("plain", "object"))}
    media = {
        "schema": {"type": "object", "properties": fields},
        "encoding": {name: {"style": "deepObject", "explode": True} for name in ("card", "items")},
    }
    app = app_with("application/x-www-form-urlencoded", media)
    operation = app.operations["send"]
    card = {"number": 1, "to": {"city": "Ulm", "zip": None}}
    given = {"card": card, "items": [{"price": 2}, "b"], "plain": {"a": 1}}
    content = encode(app, operation, bind(operation, [], given)).content
    assert content is not None
    sent = "card[number]=1&card[to][city]=Ulm&items[0][price]=2&items[1]=b"
    assert unquote_plus(content.decode()) == f'{sent}&plain={{"a":1}}'


_NULL = {"type": "null"}
_FILES = {"type": "array", "items": _FILE}


_FILE_VALUES: list[tuple[Json, list[str]]] = [
    (b"xyz", ["file"]),
    (["a.txt", b"xyz"], ["a.txt"]),
    ([["a.txt", b"xyz"], b"xyz"], ["a.txt", "file"]),
]


_FILE_SCHEMAS: list[tuple[Json, str]] = [
    ({"anyOf": [_FILE, _NULL]}, "bytes or null"),
    ({**_FILE, "nullable": True}, "bytes or null"),
    ({"nullable": True, "allOf": [{"anyOf": [_FILE, {"type": "integer"}]}]}, "bytes or integer or null"),
    ({"anyOf": [_FILES, _NULL]}, "array or null"),
    ({"type": ["array", "null"], "items": {"anyOf": [_FILE, _NULL]}}, "array or null"),
]


def test_files_that_a_form_may_lack_are_sent() -> None:
    with every_row() as row:
        for value, names in _FILE_VALUES:
            for schema, kind in _FILE_SCHEMAS:
                with row(value, names, schema, kind):
                    app = app_with(
                        "multipart/form-data", {"schema": {"type": "object", "properties": {"file": schema}}}
                    )
                    operation = app.operations["send"]
                    assert show_api_doc(Catalog({"t": app}), "t", "send")["parameters"][0]["type"] == kind
                    content = encode(app, operation, bind(operation, [], {"file": value})).content or b""
                    assert re.findall(rb'name="file"; filename="(.*)"', content) == [
                        name.encode() for name in names
                    ]
                    assert content.count(b"xyz") == len(names)
                    assert encode(app, operation, bind(operation, [], {"file": None})).content == b""


@pytest.mark.parametrize(
    ("schema", "is_sent_as_file"),
    [({"anyOf": [_FILE, _NULL]}, True), (_FILES, True), ({"anyOf": [_FILE, {"type": "string"}]}, False)],
)
def test_text_is_a_file_where_the_document_has_files_alone(schema: Json, is_sent_as_file: bool) -> None:
    app = app_with("multipart/form-data", {"schema": {"type": "object", "properties": {"file": schema}}})
    operation = app.operations["send"]
    value = ["abc"] if schema is _FILES else "abc"
    content = encode(app, operation, bind(operation, [], {"file": value})).content or b""
    assert (b'name="file"; filename="file"' in content) == is_sent_as_file


def test_alternatives_that_share_parts_do_not_unfold_without_bound() -> None:
    schema: dict[str, Json] = _PAIR
    for _ in range(40):
        schema = {"anyOf": [schema, schema]}
    operation = app_with("multipart/form-data", {}).operations["send"]
    file = Parameter(name="file", wire_name="file", place="body", required=False, schema=schema)
    with within():
        assert not takes_bytes(operation, file, b"abc")


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ({}, ["a", "b c"]),
        ({"style": "form", "explode": True}, ["a", "b c"]),
        ({"style": "form", "explode": False}, ["a,b c"]),
        ({"explode": False}, ["a,b c"]),
        ({"style": "pipeDelimited"}, ["a|b c"]),
        ({"style": "spaceDelimited", "explode": False}, ["a b c"]),
        ({"style": "simple"}, ["a", "b c"]),
    ],
)
def test_a_list_in_a_form_is_sent_as_its_encoding_says(encoding: Json, sent: list[str]) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array"}, "note": {"type": "string"}}}
    media = {"schema": schema, "encoding": {"tags": encoding, "note": encoding}}
    given = {"tags": ["a", "b c"], "note": "x,y"}
    for media_type in ("application/x-www-form-urlencoded", "multipart/form-data"):
        app = app_with(media_type, media)
        operation = app.operations["send"]
        content = encode(app, operation, bind(operation, [], given)).content
        assert fields_of(media_type, (content or b"").decode()) == [
            *(("tags", each) for each in sent),
            ("note", "x,y"),
        ]


def fields_of(media_type: str, content: str) -> list[tuple[str, str]]:
    if media_type == "multipart/form-data":
        return re.findall(r'name="(\w+)"\r\n\r\n(.*)\r\n', content)
    return parse_qsl(content)


def test_files_are_never_joined() -> None:
    media = {
        "schema": {"type": "object", "properties": {"file": _FILES}},
        "encoding": {"file": {"explode": False}},
    }
    app = app_with("multipart/form-data", media)
    operation = app.operations["send"]
    content = encode(app, operation, bind(operation, [], {"file": [b"abc", ["a.txt", b"abc"]]})).content or b""
    assert content.count(b'name="file"; filename="') == 2


def test_an_operation_with_a_body_of_parts_that_are_no_form_is_left_out() -> None:
    post = {"operationId": "send", "requestBody": {"content": {"multipart/related": {"schema": _PAIR}}}}
    app = parse_document("t", openapi({"/x": {"post": post, "get": {"operationId": "read"}}}))
    assert [each.reason for each in app.left_out] == [
        "POST /x body: multipart/related is not supported; of the multipart types, multipart/form-data is"
    ]
