"""Second round of attacks: by answers and API documents, and by addresses that should be closed."""

import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from app.apis.calls.http_call import HttpCaller, WireRequest
from app.apis.calls.network import open_client
from app.apis.documents.protocols import download, parse_document, read_document
from app.apis.documents.schemas import compiled
from app.base.errors import ApiDocumentError, HostError
from app.base.values import Json
from tests.support.document_parts import REF, answer, body, get, openapi, parsed, query, use
from tests.support.every_row import every_row
from tests.support.processor_time import within
from tests.support.raw_server import gzipped, http_answer, raw_server
from tests.support.small_internet import SmallInternet

GZIP = "Content-Encoding: gzip"
JSON = "Content-Type: application/json"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


@asynccontextmanager
async def caller(*, private: bool = True) -> AsyncIterator[HttpCaller]:
    async with open_client(allow_private_hosts=private) as client:
        yield HttpCaller(client, timeout=2)


REFUSED_ANSWERS: dict[str, bytes] = {
    "gzip cut in its header": http_answer(b"\x1f\x8b\x08", GZIP),
    "gzip with a wrong checksum": http_answer(gzipped(b"x" * 99, 1)[:-8] + bytes(8), GZIP),
    "zlib called gzip": http_answer(zlib.compress(b"x"), GZIP),
    "a coding of two lines": http_answer(b"x", "Content-Encoding: identity", "Content-Encoding: zstd"),
    "100 codings": http_answer(b"x", "Content-Encoding: " + ", ".join(["gzip"] * 100)),
    "a long coding": http_answer(b"x", "Content-Encoding: " + "g" * 5_000),
    "a chunk of a negative size": CHUNKED + b"-1\r\nx\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": CHUNKED + b"f" * 40 + b"\r\nx\r\n0\r\n\r\n",
    "a chunk size in words": CHUNKED + b"many\r\nx\r\n0\r\n\r\n",
    "a chunk that never ends": CHUNKED + b"5\r\nab",
    "chunks without an end": CHUNKED + b"1\r\nx\r\n",
    "4 MB of a chunk": CHUNKED + b"400000\r\n" + b"x" * (4 << 20) + b"\r\n0\r\n\r\n",
    "an endless trailer": CHUNKED + b"0\r\n" + b"A: 1\r\n" * 50_000 + b"\r\n",
    "a negative length": CLOSE + b"Content-Length: -5\r\n\r\nhello",
    "two lengths": CLOSE + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a length of words": CLOSE + b"Content-Length: five\r\n\r\nhello",
    "a body that is shorter": CLOSE + b"Content-Length: 50\r\n\r\nhello",
    "a megabyte of one header": http_answer(b"x", "A: " + "x" * (1 << 20)),
    "20,000 headers": http_answer(b"x", *[f"H{number}: 1" for number in range(20_000)]),
    "a header without a colon": http_answer(b"x", "Nothing"),
    "a header name with a blank": http_answer(b"x", "A B: 1"),
    "a NUL in a header": http_answer(b"x", "A: \x00"),
    "a status of words": b"HTTP/1.1 fine OK\r\n\r\n",
    "a status beyond numbers": b"HTTP/1.1 99999 OK\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "nothing": b"",
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000,
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "a redirect to a file": http_answer(b"", "Location: file:///etc/passwd", status="302 Found"),
    "a redirect to script": http_answer(b"", "Location: javascript:alert(1)", status="302 Found"),
    "a redirect to itself": http_answer(b"", "Location: ?", status="307 Temporary Redirect"),
    "a redirect by two locations": http_answer(b"", "Location: /a", "Location: //b.test", status="302 Found"),
    "a redirect of a megabyte": http_answer(b"", "Location: /" + "x" * 60_000, status="302 Found"),
    "a redirect without a scheme": http_answer(b"", "Location: //127.0.0.2/x", status="302 Found"),
    "a redirect by credentials": http_answer(b"", "Location: http://127.0.0.1@evil.test/", status="302 Found"),
    "a redirect by a backslash": http_answer(b"", "Location: /\\evil.test/", status="302 Found"),
    "a redirect to another port": http_answer(b"", "Location: http://127.0.0.1:1/", status="302 Found"),
    "JSON with a byte order mark of UTF-16": http_answer("[1]".encode("utf-16"), JSON),
    "two JSON values": http_answer(b"[1][2]", JSON),
    "JSON with a comment": http_answer(b"[1] // x", JSON),
    "JSON with a trailing comma": http_answer(b"[1,]", JSON),
    "JSON with single quotes": http_answer(b"{'a': 1}", JSON),
    "JSON with a bare control character": http_answer(b'["\x00"]', JSON),
    "a minus beyond a float": http_answer(b"[-1e400]", JSON),
    "keys that are numbers": http_answer(b"{1: 2}", JSON),
}  # fmt: skip


async def test_a_hostile_answer_is_a_short_api_error() -> None:
    with every_row() as row:
        for kind in REFUSED_ANSWERS:
            with row(kind):
                started = time.process_time()
                async with raw_server(REFUSED_ANSWERS[kind]) as url, caller() as http:
                    with pytest.raises(HostError) as caught:
                        await http.send(WireRequest("GET", url))
                assert caught.value.kind == "ApiError"
                assert len(caught.value.message) < 70_000
                assert time.process_time() - started < 20


PRIVATE_HOSTS = """
2852039166 0xa9fea9fe 0251.0376.0251.0376 0xa9.0xfe.0xa9.0xfe 127.0.1 10.1 0 0x0 00000000 127.000.000.001
0177.0.0.01 [::] [::ffff:7f00:1] [::ffff:169.254.169.254] [::ffff:a9fe:a9fe] [64:ff9b::7f00:1] [2002:7f00:1::]
[fe80::1%25lo] [fe80::1%25eth0] [fd00:ec2::254] 127.0.0.1. 169.254.169.254. LOCALHOST localhost.. 127.1.
\u2460\u2461\u2466.0.0.1 127\u30020\u30020\u30021 \uff11\uff12\uff17.0.0.1 user@127.0.0.1 9.9.9.9@127.0.0.1
9.9.9.9:80@127.0.0.1 9.9.9.9%40@127.0.0.1 4294967295 256.256.256.256 ip6-localhost x.localhost 0x7f.1
[::127.0.0.1]
"""


async def test_no_form_of_a_private_host_is_called() -> None:
    with every_row() as row:
        for host in PRIVATE_HOSTS.split():
            with row(host):
                async with caller(private=False) as http:
                    with pytest.raises(HostError) as caught:
                        await http.send(WireRequest("GET", f"http://{host}/latest"))
                assert caught.value.kind == "ApiError"
                assert any(
                    said in caught.value.message
                    for said in ("private address", "link-local", "cannot be found", "cannot be reached: Invalid")
                ), caught.value.message


async def test_no_document_is_fetched_from_a_private_host() -> None:
    with every_row() as row:
        for host in PRIVATE_HOSTS.split():
            with row(host):
                async with open_client(allow_private_hosts=False) as client:
                    with pytest.raises(ApiDocumentError, match="cannot be reached"):
                        await download(client, f"http://{host}/openapi.json")


async def test_a_document_is_not_fetched_from_a_private_host_after_a_redirect() -> None:
    with every_row() as row:
        for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "user@127.1"]:
            for status in [301, 302, 303, 307, 308]:
                with row(host, status):
                    location = f"Location: http://{host}/openapi.json"
                    internet = SmallInternet(
                        {}, {"/openapi.json": http_answer(b"", location, status=f"{status} Elsewhere")}
                    )
                    async with (
                        internet.online(),
                        open_client(allow_private_hosts=False, network=internet.public) as client,
                    ):
                        with pytest.raises(
                            ApiDocumentError, match=r"private address|cannot be found|cannot be reached"
                        ):
                            await download(client, "http://9.9.9.9/openapi.json")
                    assert internet.reached == ["9.9.9.9"]


async def test_credentials_of_an_address_are_no_host() -> None:
    internet = SmallInternet({}, {"/x": http_answer(b"ok")})
    async with internet.online(), open_client(allow_private_hosts=False, network=internet.public) as client:
        assert (await client.get("http://127.0.0.1@9.9.9.9/x")).text == "ok"
    assert internet.reached == ["9.9.9.9"]


YAML: dict[str, str] = {
    "a tag of a module": "a: !!python/module:os",
    "a tag of an object": "a: !!python/object/new:os.system ['id']",
    "a tag of a call": "a: !!python/object/apply:subprocess.run [[id]]",
    "a tag of a name": "a: !!python/name:os.system",
    "a tag of a tuple": "a: !!python/tuple [1]",
    "a tag of one's own": "a: !evil 1",
    "a tag by address": "a: !<tag:yaml.org,2002:python/object/apply:os.system> [id]",
    "a set": "a: !!set {x}",
    "pairs": "a: !!pairs [x: 1]",
    "an ordered mapping": "a: !!omap [x: 1]",
    "binary": "a: !!binary aGk=",
    "a time": "a: !!timestamp 2020-01-01",
    "an integer of words": "a: !!int x",
    "a float of words": "a: !!float x",
    "infinity": "a: !!float .inf",
    "an alias of itself": "a: &a [*a]",
    "a mapping of itself": "a: &a {b: *a}",
    "an alias of nothing": "a: *b",
    "keys of a list": "? [1, 2]\n: 1",
    "keys of aliases": "a: &a [1]\n? *a\n: 2",
    "two documents": "a: 1\n---\nb: 2",
    "a directive": "%YAML 9.9\n---\na: 1",
    "a sexagesimal": "a: !!int '1:60:60'",
    "a merge of a text": "a: {<<: x}",
    "10,000 anchors": "\n".join(f"k{n}: &k{n} 1" for n in range(10_000)),
    "a deep flow": "a: " + "[" * 5_000,
    "a deep block": "\n".join(" " * n + f"k{n}:" for n in range(1_500)),
    "a long key": "? " + "k" * 3_000_000 + "\n: 1",
    "a key of a float": "1.5: a\n2: b\ntrue: c\nnull: d\n~: e",
    "a key that is infinite": "!!float .inf: 1",
    "a key of 5,000 digits": "9" * 5_000 + ": 1",
}  # fmt: skip


def test_hostile_yaml_is_refused_or_plain() -> None:
    with every_row() as row:
        for kind in YAML:
            with row(kind):
                with within():
                    try:
                        read = read_document(YAML[kind])
                    except ApiDocumentError:
                        continue
                assert all(isinstance(name, str) for name in read)
                msgspec.json.decode(msgspec.json.encode(read))


def _schema(schema: Json, **schemas: Json) -> Callable[[], dict[str, Json]]:
    """As argument, field and answer."""
    return lambda: openapi(
        {"/x": {"post": {"operationId": "x", "parameters": [query("q")],
                         **body({"type": "object", "properties": {"b": schema}}), **answer(schema)}}},
        **schemas,
    )  # fmt: skip


def _nodes(word: str) -> dict[str, Json]:
    return {"A": {word: [{"$ref": f"{REF}B"}, {"$ref": f"{REF}A"}]}, "B": {word: [{"$ref": f"{REF}A"}] * 5}}


_REFS: list[Json] = [
    "", "#", "#/", "##", "#/%", "#/%ZZ", "#/%00", "#/~2", "#/paths/-1", "#/servers/-", "#/servers/+0",
    "#/servers/0x0",
    "#/openapi/0", "#/info/title/0", "#anchor", "http://169.254.169.254/x", "file:///etc/passwd", "//evil.test/x",
    "\x00", "#/" + "a/" * 900, "#/\ud800", 7, None, True, [], {}, ["#"], {"$ref": "#"}, 1e308,
]  # fmt: skip
DOCUMENTS: dict[str, Callable[[], dict[str, Json]]] = {
    **{f"$ref {str(each)[:30]!a}": _schema({"$ref": each}) for each in _REFS},
    **{f"recursive {word}": _schema({"$ref": f"{REF}A"}, **_nodes(word)) for word in ("anyOf", "oneOf", "allOf")},
    "recursive not": _schema({"$ref": f"{REF}A"}, A={"not": {"$ref": f"{REF}A"}}),
    "recursive names": _schema({"$ref": f"{REF}A"}, A={"propertyNames": {"$ref": f"{REF}A"}}),
    "a parameter that is a schema": lambda: openapi(get(parameters=[{"$ref": "#/components"}])),
    "a path of itself": lambda: openapi({"/x": {"$ref": "#/paths/~1x"}}),
    "paths that lead round": lambda: openapi({"/x": {"$ref": "#/paths/~1y"}, "/y": {"$ref": "#/paths/~1x"}}),
    "an enum of 300,000 texts": _schema({"enum": ["x" * 20 + str(n) for n in range(100_000)]}),
    "an enum of mappings": _schema({"enum": [{"a": [{"b": n}]} for n in range(30_000)]}),
    "a const of megabytes": _schema({"const": ["x" * 1_000_000]}),
    "a required of 100,000": _schema({"type": "object", "required": [f"f{n}" for n in range(100_000)]}),
    "dynamic references": _schema({"$dynamicRef": "#x", "$dynamicAnchor": "x", "$id": "http://evil.test/"}),
    "an unknown dialect": _schema({"$schema": "http://169.254.169.254/", "$vocabulary": {"x": True}}),
    "a format of code": _schema({"type": "string", "format": "regex", "contentSchema": {"$ref": "#"}}),
    "dependencies": _schema({"dependentSchemas": {"a": {"$ref": "#"}}, "if": {"$ref": "#"}, "then": False}),
    "a huge minimum of items": _schema({"type": "array", "minItems": 10**300, "uniqueItems": True}),
    "a tiny multiple": _schema({"type": "number", "multipleOf": 5e-324}),
    "a server of credentials": lambda: openapi(get()) | {"servers": [{"url": "http://a:b@c.test"}]},
    "a server of script": lambda: openapi(get()) | {"servers": [{"url": "javascript://x"}]},
    "a server of variables": lambda: openapi(get()) | {"servers": [{"url": "{a}{b}://{c}@{d}"}]},
    "servers of nothing": lambda: openapi(get()) | {"servers": [None]},
    "paths of numbers": lambda: openapi({"/x": 7, "/y": [], "z": {"get": {}}}),
    "methods of numbers": lambda: openapi({"/x": {"get": 7, "post": None}}),
}  # fmt: skip
PATTERNS = [
    "(a{1000}){1000}", "((a{100}){100}){100}", "(x+x+)+y", "(a|a)*$", "(" * 1_000 + ")" * 1_000, "[" * 1_000,
    "a" * 3_000, "(?:" + "|".join(f"k{n}" for n in range(500)) + ")*", r"\p{L}{500}", r"[\s\S]{1000}",
    "(?i)" + "é" * 900, r"\1", "(?<=a)b", "(?P<n>a)(?P<n>b)", "\x00", r"\u{110000}", r"\u{D800}", "a**", "{,5}",
    "(.{0,999}){0,999}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(?P>x)", r"\C", "[z-a]", "(?i-s:(?U)a+)" * 100,
]  # fmt: skip


def test_a_hostile_document_is_refused_or_usable() -> None:
    with every_row() as row:
        for kind in DOCUMENTS:
            with row(kind), within():
                app = parsed(DOCUMENTS[kind]())
                if app is not None:
                    use(app)


def test_a_hostile_pattern_is_left_out_or_matched_in_linear_time() -> None:
    with every_row() as row:
        for pattern in PATTERNS:
            with row(pattern), within():
                machine = compiled(pattern)
                assert machine is None or machine.size <= 4_000
                if machine is not None:
                    machine.found_in("a" * 100_000 + "!")
                app = parsed(openapi(get(parameters=[query("q", type="string", pattern=pattern)])))
                if app is not None:
                    use(app)


def test_a_document_without_a_name_of_its_own_is_of_no_kind() -> None:
    with pytest.raises(ApiDocumentError, match="of no known kind"):
        parse_document("t", {"asyncapi": "3.0.0"})
