"""The media type of a body fits the value that is sent: of several that a document offers, within a range."""

import pytest

from app.apis.catalog import Catalog
from app.apis.look_ups import show_api_doc
from app.base.errors import HostError
from app.base.values import Json
from tests.support.every_row import every_row
from tests.support.wire import parts_of, wire

PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
FORM, PARTS, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"
FILE = {"type": "string", "format": "binary"}
TEXT = {"type": "string"}
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"
OPERATION = [{"op": "remove", "path": "/a"}]


def fields(**properties: Json) -> dict[str, Json]:
    needed = [name for name in properties if name.startswith("the_")]
    return {"type": "object", "properties": properties, "required": needed}


def offered(content: dict[str, Json], *, required: bool = True) -> Json:
    described = {name: {"schema": schema} for name, schema in content.items()}
    return {"requestBody": {"required": required, "content": described}}


async def test_a_json_patch_is_a_list_and_anything_else_is_another_json() -> None:
    whole = {"type": "object"}
    operations = {"type": "array", "items": {"type": "object"}}
    kubernetes = {
        "application/apply-patch+yaml": whole,
        PATCH: whole,
        MERGE: whole,
        "application/strategic-merge-patch+json": whole,
    }
    rows: list[tuple[str, dict[str, Json], dict[str, Json], str]] = [
        ("of two", {PATCH: whole, MERGE: whole}, {"body": {"a": 1}}, MERGE),
        ("of two, a list", {PATCH: whole, MERGE: whole}, {"body": OPERATION}, PATCH),
        ("Kubernetes", kubernetes, {"body": {"spec": {"replicas": 2}}}, MERGE),
        ("Kubernetes, a list", kubernetes, {"body": OPERATION}, PATCH),
        ("any value", {PATCH: {}, MERGE: {}}, {"body": {"a": 1}}, MERGE),
        ("any value, a list", {MERGE: {}, PATCH: {}}, {"body": OPERATION}, PATCH),
        ("fields beside a list", {PATCH: operations, JSON: fields(a=TEXT)}, {"a": "x"}, JSON),
        ("a list beside fields", {JSON: fields(a=TEXT), PATCH: operations}, {"body": OPERATION}, PATCH),
        ("a list under both", {JSON: operations, PATCH: operations}, {"body": OPERATION}, PATCH),
        ("fields under all", {PATCH: fields(a=TEXT), JSON: fields(a=TEXT), "text/json": whole}, {"a": "x"}, JSON),
        ("alone", {PATCH: operations}, {"body": OPERATION}, PATCH),
    ]  # fmt: skip
    with every_row() as row:
        for name, content, arguments, kind in rows:
            async with wire(offered(content), method="patch") as to:
                with row(name):
                    assert (await to.sent(**arguments)).headers["content-type"] == kind
    async with wire(offered({PATCH: operations, JSON: operations}), method="post") as to:
        assert (await to.sent(body=OPERATION)).headers["content-type"] == JSON, "nothing is patched by POST"


async def test_a_form_is_sent_where_a_file_is_given_or_a_field_that_it_alone_has() -> None:
    account, text, two = fields(avatar=FILE, name=TEXT), fields(a=TEXT), fields(a=TEXT, b=TEXT)
    texts, files = ({"type": "array", "items": each} for each in (TEXT, FILE))
    upload = {JSON: fields(the_url=TEXT, title=TEXT), PARTS: fields(the_file=FILE, title=TEXT, tag=TEXT)}
    rows: list[tuple[str, dict[str, Json], dict[str, Json], str]] = [
        ("a file", {JSON: account, PARTS: account}, {"avatar": PNG}, PARTS),
        ("a named file", {JSON: account, FORM: account, PARTS: account}, {"avatar": ["a.png", PNG]}, PARTS),
        ("no file", {JSON: account, PARTS: account}, {"name": "x"}, JSON),
        ("a file as text", {JSON: account, PARTS: account}, {"avatar": "data:,x"}, JSON),
        ("a text in JSON alone", {JSON: fields(avatar=TEXT), PARTS: fields(avatar=FILE)}, {"avatar": PNG}, PARTS),
        ("files", {JSON: fields(f=texts), PARTS: fields(f=files)}, {"f": [PNG]}, PARTS),
        ("required by JSON", upload, {"the_url": "http://a.test", "title": "x"}, JSON),
        ("required by the form", upload, {"the_file": PNG, "title": "x"}, PARTS),
        ("its own field", upload, {"the_file": "text", "tag": "x"}, PARTS),
        ("its own field, no file", {JSON: text, FORM: two}, {"a": "1", "b": "2"}, FORM),
        ("the other field", {JSON: text, FORM: two}, {"a": "1"}, JSON),
        ("a form without parts", {JSON: account, FORM: account}, {"avatar": PNG}, FORM),
        ("two forms", {FORM: account, PARTS: account}, {"avatar": PNG}, PARTS),
        ("two forms, no file", {FORM: account, PARTS: account}, {"name": "x"}, FORM),
        ("any JSON", {JSON: {}, PARTS: fields(the_file=FILE)}, {"the_file": PNG}, PARTS),
        ("any JSON, no file", {JSON: {}, PARTS: fields(the_file=FILE)}, {"body": [1]}, JSON),
        ("a file beside JSON", {JSON: fields(the_url=TEXT), "image/*": FILE}, {"body": PNG}, "image/png"),
        ("JSON beside a file", {JSON: fields(the_url=TEXT), "image/*": FILE}, {"the_url": "u"}, JSON),
        ("the same under all", {JSON: text, FORM: text, PARTS: text}, {"a": "x"}, JSON),
    ]  # fmt: skip
    with every_row() as row:
        for name, content, arguments, kind in rows:
            async with wire(offered(content), method="post") as to:
                with row(name):
                    received = await to.sent(**arguments)
                    assert received.headers["content-type"].partition(";")[0] == kind
                    if kind == PARTS:
                        parts = parts_of(received)
                        assert parts.keys() == arguments.keys()
                        assert all(parts[each][2] == PNG for each in parts.keys() & {"avatar", "f"})


async def test_another_encoding_of_the_same_object_is_no_file() -> None:
    content: dict[str, Json] = dict.fromkeys([JSON, "application/x-protobuf", "application/vnd.a"], fields(a=TEXT))
    async with wire(offered({**content, "application/cbor": {}}), method="post") as to:
        assert to.operation.arguments == ("a",)


async def test_a_misspelt_form_goes_out_by_the_name_that_servers_know() -> None:
    photo = fields(photo=FILE, a=TEXT)
    rows: list[tuple[dict[str, Json], dict[str, Json], str]] = [
        *(({each: photo}, {"photo": PNG, "a": "x"}, PARTS) for each in [
            "application/form-data", "multipart/data", "form-data", "multipart/form", "multipart/x-form-data",
            "Application/Multipart-Form-Data; charset=utf-8",
        ]),
        *(({each: fields(a=TEXT)}, {"a": "x"}, FORM) for each in [
            "multipart/x-www-form-urlencoded", "application/x-www-form-url-encoded", "x-www-form-urlencoded",
            "application/form-urlencoded", "application/x-www-form-encoded",
        ]),
        ({"multipart/data": photo, JSON: fields(a=TEXT)}, {"photo": PNG}, PARTS),
        ({"multipart/data": photo, JSON: fields(a=TEXT)}, {"a": "x"}, JSON),
        ({"multipart/data": fields(b=TEXT), PARTS: photo}, {"photo": PNG}, PARTS),
        ({PARTS: photo, "multipart/data": fields(b=TEXT)}, {"photo": PNG}, PARTS),
    ]  # fmt: skip
    with every_row() as row:
        for content, arguments, kind in rows:
            async with wire(offered(content), method="post") as to:
                with row(str(content)):
                    received = await to.sent(**arguments)
                    assert received.headers["content-type"].partition(";")[0] == kind
                    if kind == PARTS:
                        assert parts_of(received).keys() == arguments.keys()
        text = {"name": "t", "in": "formData", "type": "string"}
        for consumed, kind in [("application/form-data", PARTS), ("application/x-www-form-url-encoded", FORM)]:
            node = {"consumes": [consumed], "parameters": [text]}
            async with wire(node, method="post", document={"swagger": "2.0"}) as to:
                with row("Swagger 2.0", consumed):
                    received = await to.sent(t="x")
                    assert received.headers["content-type"].partition(";")[0] == kind


async def test_a_form_that_is_a_file_alone_has_it_as_its_one_part() -> None:
    files: dict[str, Json] = {"type": "array", "items": FILE}
    rows: list[tuple[Json, Json, dict[str, Json], dict[str, tuple[str, str | None, bytes]]]] = [
        (FILE, None, {"file": PNG}, {"file": ("image/png", "file", PNG)}),
        (FILE, None, {"file": ["a.jpg", JPEG]}, {"file": ("image/jpeg", "a.jpg", JPEG)}),
        (files, None, {"file": [PNG]}, {"file": ("image/png", "file", PNG)}),
        (FILE, {"photo": {"contentType": "image/*"}}, {"photo": PNG}, {"photo": ("image/png", "photo", PNG)}),
    ]
    with every_row() as row:
        for schema, encoding, arguments, parts in rows:
            media = {"schema": schema, **({"encoding": encoding} if encoding else {})}
            node = {"requestBody": {"required": True, "content": {PARTS: media}}}
            async with wire(node, method="post") as to:
                with row(str(media)):
                    assert to.operation.required == tuple(arguments)
                    assert parts_of(await to.sent(**arguments)) == parts


async def test_a_form_whose_fields_depend_on_one_another_takes_files_among_them() -> None:
    one_of: Json = {"oneOf": [fields(the_url=TEXT), fields(the_file=FILE, name=TEXT)]}
    async with wire(offered({PARTS: one_of}), method="post") as to:
        assert to.operation.arguments == ("body",)
        doc = show_api_doc(Catalog({"t": to.gateway.catalog.apps["t"]}), "t", to.operation.name)
        assert doc["parameters"][0]["fields"] == {"the_url": "string", "the_file": "bytes", "name": "string"}
        for file, file_name in ((PNG, "the_file"), (["a.png", PNG], "a.png")):
            sent = parts_of(await to.sent(body={"the_file": file, "name": "x"}))
            assert sent == {"the_file": ("image/png", file_name, PNG), "name": ("text/plain", None, b"x")}
        assert parts_of(await to.sent(body={"the_url": "u"})) == {"the_url": ("text/plain", None, b"u")}
        for wrong in ({"the_file": {"deep": PNG}}, PNG, [PNG]):  # of which no part could be a file
            with pytest.raises(HostError, match="bytes is not JSON"):
                await to.sent(body=wrong)


async def test_the_parts_of_such_a_form_are_encoded_as_it_says() -> None:
    many = {"type": "array", "items": TEXT}
    media = {
        "schema": {"oneOf": [fields(the_url=TEXT), fields(the_file=FILE, tags=many)]},
        "encoding": {
            "the_file": {"contentType": "application/x-bittorrent"},
            "tags": {"style": "form", "explode": False},
        },
    }
    async with wire({"requestBody": {"content": {PARTS: media}}}, method="post") as to:
        sent = parts_of(await to.sent(body={"the_file": b"d8:", "tags": ["a", "b"]}))
        assert sent == {
            "the_file": ("application/x-bittorrent", "the_file", b"d8:"),
            "tags": ("text/plain", None, b"a,b"),
        }
    async with wire({"requestBody": {"content": {FORM: media}}}, method="post") as to:
        assert (await to.sent(body={"the_url": "u", "tags": ["a", "b"]})).body == b"the_url=u&tags=a%2Cb"


async def test_text_under_a_type_of_bytes_goes_out_without_a_charset() -> None:
    async with wire(offered({"application/octet-stream": {"type": "object"}}), method="post") as to:
        received = await to.sent(body='{"a":1}')
        assert (received.headers["content-type"], received.body) == ("application/octet-stream", b'{"a":1}')


async def test_any_value_of_any_type_is_json_or_the_bytes_as_they_are() -> None:
    rows: list[tuple[str, Json, Json, str, bytes]] = [
        ("*/*", {}, PNG, "image/png", PNG),
        ("*/*", {}, b"?", "application/octet-stream", b"?"),
        ("*/*", {}, {"a": 1}, JSON, b'{"a":1}'),
        ("*/*", {}, "a", JSON, b'"a"'),
        ("*/*", None, PNG, "image/png", PNG),
        ("application/*", {}, b"%PDF-1.7", "application/pdf", b"%PDF-1.7"),
    ]
    with every_row() as row:
        for kind, schema, value, sent_as, body in rows:
            async with wire(offered({kind: schema}), method="post") as to:
                with row(kind, str(schema), str(value)):
                    received = await to.sent(body=value)
                    assert (received.headers["content-type"], received.body) == (sent_as, body)
    async with wire(offered({"*/*": {}}), method="post") as to:
        doc = show_api_doc(Catalog({"t": to.gateway.catalog.apps["t"]}), "t", to.operation.name)
        assert [each["type"] for each in doc["parameters"]] == ["any or bytes"]
    async with wire(offered({"*/*": {"type": "object"}}), method="post") as to:
        with pytest.raises(HostError, match="bytes is not JSON"):
            await to.sent(body=PNG)


async def test_fields_that_no_body_has_together_are_refused_before_anything_is_sent() -> None:
    upload = {JSON: fields(the_url=TEXT), PARTS: fields(the_file=FILE)}
    async with wire(offered(upload), method="post") as to:
        assert to.operation.required == ()
        for given in ({"the_url": "u", "the_file": PNG}, {}):
            with pytest.raises(HostError, match=r"of application/json \(requires the_url\), multipart") as caught:
                await to.sent(**given)
            assert (caught.value.kind, to.server.received) == ("TypeError", [])
        doc = show_api_doc(Catalog({"t": to.gateway.catalog.apps["t"]}), "t", to.operation.name)
        assert [each["name"] for each in doc["parameters"]] == ["the_url", "the_file"]


async def test_a_range_becomes_a_type_within_it_by_the_bytes() -> None:
    svg = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>'
    rows: list[tuple[dict[str, Json], Json, str]] = [
        ({"image/*": FILE}, PNG, "image/png"),
        ({"image/*": {}}, JPEG, "image/jpeg"),
        ({"image/*": FILE}, svg, "image/svg+xml"),
        ({"image/*": FILE}, b"?", "application/octet-stream"),
        ({"*/*": FILE}, b"%PDF-1.7", "application/pdf"),
        ({"*/*": FILE}, b"?", "application/octet-stream"),
        ({"application/*": FILE}, b"PK\x03\x04", "application/zip"),
        ({"video/*": FILE, "audio/*": FILE}, b"ID3\x04", "audio/mpeg"),
        ({"image/png": FILE, "image/jpeg": FILE}, JPEG, "image/jpeg"),
        ({"image/png": FILE, "image/jpeg": FILE}, b"?", "image/png"),
        ({"image/png": FILE, "application/octet-stream": FILE}, JPEG, "application/octet-stream"),
        ({"image/png": FILE}, JPEG, "image/png"),
        ({"text/csv": TEXT, "application/vnd.ms-excel": FILE}, "a,b", "text/csv; charset=utf-8"),
        ({"text/*": TEXT}, "a", "text/plain; charset=utf-8"),
    ]
    with every_row() as row:
        for content, value, kind in rows:
            async with wire(offered(content), method="post") as to:
                with row(str(content), value):
                    received = await to.sent(body=value)
                    sent = value if isinstance(value, bytes) else value.encode()
                    assert (received.headers["content-type"], received.body) == (kind, sent)


async def test_a_part_of_a_form_has_a_type_of_those_that_its_encoding_lists() -> None:
    with every_row() as row:
        for declared, content, kind in [
            ("image/png, image/jpeg", JPEG, "image/jpeg"),
            ("image/*", PNG, "image/png"),
            ("image/png", JPEG, "image/png"),
            ("application/pdf,image/*", b"%PDF-1.4", "application/pdf"),
            ("image/*", b"?", "application/octet-stream"),
            ("nonsense", JPEG, "image/jpeg"),
            ("nonsense", b"?", "application/octet-stream"),
        ]:
            media = {"schema": fields(photo=FILE), "encoding": {"photo": {"contentType": declared}}}
            async with wire({"requestBody": {"content": {PARTS: media}}}, method="post") as to:
                with row(declared, content):
                    assert parts_of(await to.sent(photo=content)) == {"photo": (kind, "photo", content)}


async def test_a_form_of_swagger_2_goes_out_as_what_consumes_lists() -> None:
    file, text = {"name": "f", "in": "formData", "type": "file"}, {"name": "t", "in": "formData", "type": "string"}
    rows: list[tuple[Json, list[str] | None, dict[str, Json], str]] = [
        ([text], [PARTS], {"t": "x"}, PARTS),
        ([text], [PARTS, JSON], {"t": "x"}, PARTS),
        ([text], [JSON, FORM], {"t": "x"}, FORM),
        ([text], [PARTS, FORM], {"t": "x"}, FORM),
        ([text], ["Multipart/Form-Data; charset=utf-8"], {"t": "x"}, PARTS),
        ([text], [JSON], {"t": "x"}, FORM),
        ([text], None, {"t": "x"}, FORM),
        ([text, file], [FORM, PARTS], {"t": "x", "f": PNG}, PARTS),
        ([text, file], None, {"f": PNG}, PARTS),
        ([text, file], [FORM], {"t": "x", "f": PNG}, FORM),
    ]
    with every_row() as row:
        for number, (parameters, consumes, arguments, kind) in enumerate(rows):
            for place in ("operation", "document"):
                listed = {} if consumes is None else {"consumes": consumes}
                node = {"parameters": parameters, **(listed if place == "operation" else {})}
                document = {"swagger": "2.0", **(listed if place == "document" else {})}
                async with wire(node, method="post", document=document) as to:
                    with row(number, consumes, place):
                        received = await to.sent(**arguments)
                        assert received.headers["content-type"].partition(";")[0] == kind
                        if kind == FORM and "f" in arguments:
                            assert received.body == b"t=x&f=%89PNG%0D%0A%1A%0A"
