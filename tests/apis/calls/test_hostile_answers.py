"""Answers of a hostile API: each becomes a value or an ApiError, in bounded time and memory."""

import tracemalloc
import zlib

import msgspec
import pytest

from app.apis.calls.http_call import HttpCaller, WireRequest
from app.apis.calls.network import open_client
from app.base.errors import HostError
from app.base.untrusted import JsonError, count_values, decode_json
from app.base.values import Json
from tests.support.event_loop import longest_stall
from tests.support.every_row import every_row
from tests.support.processor_time import within
from tests.support.raw_server import gzipped, http_answer, raw_server

JSON = "Content-Type: application/json"
GZIP = "Content-Encoding: gzip"


async def ask(answer: bytes) -> Json:
    """What a call returns whose API sends these bytes."""
    async with raw_server(answer) as url, open_client(allow_private_hosts=True) as client:
        return (await HttpCaller(client, timeout=20).send(WireRequest("GET", url))).value


async def refusal(answer: bytes) -> str:
    with pytest.raises(HostError) as caught:
        await ask(answer)
    assert caught.value.kind == "ApiError"
    return caught.value.message


async def test_a_small_answer_that_unfolds_to_gigabytes_costs_only_the_limit() -> None:
    twice = gzipped(bytes(64 << 20), 2)
    assert len(twice) < 3000
    once = gzipped(bytes(64 << 20), 1)
    tracemalloc.start()
    try:
        assert await refusal(http_answer(twice, "Content-Encoding: gzip, gzip")) == (
            "the answer is compressed 2 times over"
        )
        assert "compressed 2 times" in await refusal(http_answer(twice, GZIP, GZIP))
        tracemalloc.reset_peak()
        async with longest_stall() as worst:
            assert await refusal(http_answer(once, GZIP)) == "the answer is larger than 3 MB; ask for less at once"
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        assert worst[0] < 0.2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "raw deflate", "identity", ""])
async def test_one_content_coding_is_decoded(coding: str) -> None:
    body = b'{"text": "' + b"words " * 100_000 + b'"}'
    sent = {
        "deflate": zlib.compress(body),
        "raw deflate": zlib.compress(body, wbits=-15),
        "identity": body,
        "": body,
    }.get(coding, gzipped(body, 1))
    got = await ask(http_answer(sent, JSON, f"Content-Encoding: {coding.removeprefix('raw ')}"))
    assert got == msgspec.json.decode(body)


@pytest.mark.parametrize(
    ("body", "coding", "reason"),
    [
        (b"x", "br", "the answer has the content coding 'br'; gzip and deflate are supported"),
        (b"not gzip", "gzip", "the answer is not the gzip data that it claims to be"),
        (gzipped(b"words" * 99, 1)[:-9], "gzip", "the answer ends within its gzip data"),
    ],
)
async def test_a_body_that_cannot_be_decompressed_is_an_api_error(body: bytes, coding: str, reason: str) -> None:
    assert await refusal(http_answer(body, f"Content-Encoding: {coding}")) == reason


async def test_a_compressed_answer_without_a_body_is_empty() -> None:
    assert await ask(http_answer(b"", GZIP, status="204 No Content")) is None


async def test_an_answer_in_countless_parts_does_not_hold_up_the_loop() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with longest_stall() as worst:
        assert "20,000 parts" in await refusal(head + b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n")
    assert worst[0] < 0.2
    assert await ask(head + b"1\r\nx\r\n" * 2_000 + b"0\r\n\r\n") == "x" * 2_000


@pytest.mark.parametrize("charset", ["zlib_codec", "hex", "rot13", "idna", "utf-7", "unicode_escape", "?"])
async def test_a_character_set_that_is_none_is_read_as_utf_8(charset: str) -> None:
    kind = f"Content-Type: text/plain; charset={charset}"
    assert await ask(http_answer("é".encode(), kind)) == "é"
    assert await ask(http_answer(b"\xff\xfe\xfd", kind)) == b"\xff\xfe\xfd"
    assert "404: no mail" in await refusal(http_answer(b"no mail", kind, status="404 Not Found"))


@pytest.mark.parametrize("charset", ["latin-1", '"ISO-8859-1"', "windows-1252", "Latin1"])
async def test_a_declared_character_set_is_used(charset: str) -> None:
    assert await ask(http_answer(b"\xe9", f"Content-Type: text/plain; charset={charset}")) == "é"


NUMBERS = b"[" + b",".join([b"1.7976931348623157e308"] * 130_000) + b"]"


HOSTILE_JSON: list[tuple[bytes, str]] = [
    (b"[" * 1_000_000, "holds more than 200,000 values"),
    (b"[" * 900 + b"]" * 900, "nested deeper than 64"),
    (b"[" * 150_000 + b"]" * 150_000, "nested deeper than 64"),
    (b'{"a":' * 66 + b"1" + b"}" * 66, "nested deeper than 64"),
    (b"[" + b"{}," * 900_000 + b"1]", "holds more than 200,000 values"),
    (b"[" + b'"",' * 900_000 + b"1]", "holds more than 200,000 values"),
    (b"1" * (2 << 20), "Integer value out of range"),
    (b"1" * 400, "an integer has more than 1023 bits"),
    (b"[[1e999]]", "beyond the range of a float"),
    (b'"\\ud800"', ""),
    (b'"\xed\xa0\x80"', "utf-8"),
    (b'["' + b'\\"' * 1_000_000, "truncated"),
]


async def test_hostile_json_is_an_api_error_at_once() -> None:
    with every_row() as row:
        for body, reason in HOSTILE_JSON:
            with row(body, reason), within():
                message = await refusal(http_answer(body, JSON))
                assert message.startswith("the answer is not the JSON it claims to be: ")
                assert reason in message


@pytest.mark.parametrize("body", [NUMBERS, b'{"' + b"k" * (2 << 20) + b'": 1}', b'{"a": 1, "a": "\\u0000"}'])
async def test_unusual_json_is_decoded_at_once(body: bytes) -> None:
    with within():
        assert await ask(http_answer(body, JSON))


def test_the_limits_of_values_and_depth_are_exact() -> None:
    def decode(text: bytes) -> Json:
        return decode_json(text, max_values=2000, max_depth=10)

    assert len(decode(b"[" + b",".join([b"[]"] * 1999) + b"]")) == 1999
    with pytest.raises(JsonError, match="more than 2,000 values"):
        decode(b"[" + b",".join([b"[]"] * 2000) + b"]")
    assert decode(b"[" * 10 + b"1" + b"]" * 10)
    with pytest.raises(JsonError, match="deeper than 10"):
        decode(b"[" * 11 + b"1" + b"]" * 11)


def test_values_are_counted_outside_of_texts() -> None:
    value = [{"a,[{": 'b",\\"[{', "c": [1, {}, "\\"]}] * 500
    assert count_values(msgspec.json.encode(value)) == 1 + 500 * 6


async def test_cookies_of_answers_are_not_collected() -> None:
    cookies = [f"Set-Cookie: a{number}=1" for number in range(100)]
    async with (
        raw_server(http_answer(b"", *cookies)) as url,
        open_client(allow_private_hosts=True) as client,
    ):
        await HttpCaller(client, timeout=30).send(WireRequest("GET", url))
        assert len(client.cookies.jar) == 0


@pytest.mark.parametrize("location", ["http://[broken", "//", "http://a:99999/", "\\\\x", "http://é" * 99])
async def test_a_redirect_to_nonsense_is_an_api_error(location: str) -> None:
    answer = http_answer(b"", f"Location: {location}", status="302 Found")
    assert await refusal(answer)
