"""Messages of a hostile sandbox cost the host little time and memory, whatever they hold."""

import asyncio
import json
import tracemalloc

import pytest

from app.base.values import Json
from app.sandbox.confined_process import CallMessage, MessageReader, SessionMessage, ViolationError
from app.sandbox.wire import LENGTH_BYTES, MAX_NODES, pack, plain
from tests.support.processor_time import within

_BYTES = 4 << 20
_HOSTILE = {
    "unclosed": b'["out","n","' + b"a," * (_BYTES // 2),
    "unclosed escapes": b'["out","n","' + b'\\",' * (_BYTES // 3),
    "backslashes": b'["out","n","' + b"\\" * (_BYTES - 1) + b',"]',
    "quotes": b'["out","n",' + b'"' * _BYTES + b",",
    "short strings": b'["out","n",' + b'"","a",' * (_BYTES // 7) + b"1]",
    "closed": b'["call","n","a.b",["' + b"[," * (_BYTES // 2) + b'"],{},1]',
    "brackets": b"[" * _BYTES,
    "objects": b'{"":' * (_BYTES // 4),
    "digits": b'["call","n","a.b",[' + b"9" * _BYTES + b"],{}]",
    "nearly too many digits": b'["call","n","a.b",['
    + (b"9" * 307 + b",") * (_BYTES // 308)
    + b"9" * 400
    + b"],{}]",
}


async def _read(frame: bytes, run: str = "n") -> SessionMessage:
    stream = asyncio.StreamReader()
    stream.feed_data(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    stream.feed_eof()
    reader = MessageReader(stream, 2 * _BYTES)
    reader.expect(run, messages=1)
    return await reader.next()


async def _read_all(reader: MessageReader) -> None:
    while True:
        await reader.next()


async def _read_call(*args: Json) -> SessionMessage:
    return await _read(pack(["call", "n", "a.b", list(args), {}], _BYTES)[LENGTH_BYTES:])


@pytest.mark.parametrize("name", _HOSTILE)
async def test_a_hostile_frame_is_rejected_in_time_linear_in_its_size(name: str) -> None:
    with within(), pytest.raises(ViolationError):
        await _read(_HOSTILE[name])


@pytest.mark.parametrize("character", ["a,", "[{", '\\"', "\\\\,"])
async def test_a_string_of_4_mb_is_read_with_little_memory(character: str) -> None:
    frame = b'["call","n","a.b",["' + character.encode() * (_BYTES // len(character)) + b'"],{}]'
    tracemalloc.start()
    try:
        message = await _read(frame)
        assert tracemalloc.get_traced_memory()[1] < 12 * _BYTES
    finally:
        tracemalloc.stop()
    assert isinstance(message, CallMessage)
    assert message.args == [json.loads(b'"' + character.encode() + b'"') * (_BYTES // len(character))]


@pytest.mark.parametrize("text", ['"', "\\", '\\"', '\\\\"', '",', '[{"', "\\u005c", "a\\\\\\\\"])
async def test_text_is_never_taken_for_structure(text: str) -> None:
    many = [text + "[{,]}"] * (MAX_NODES // 4)  # more brackets and commas than values are allowed
    message = await _read_call(many)
    assert isinstance(message, CallMessage)
    assert message.args == [many]


@pytest.mark.parametrize("text", ["", '"', "\\", '\\"', "[]"])
async def test_values_beyond_the_limit_are_counted_whatever_strings_stand_between_them(text: str) -> None:
    with pytest.raises(ViolationError, match="too many values"):
        await _read_call([text] * MAX_NODES)


@pytest.mark.parametrize("value", [[], {}, "", [1], {"": 1}])
async def test_as_many_values_may_be_passed_as_the_sandbox_lets_through(value: Json) -> None:
    own = len(value) if isinstance(value, (list, dict)) else 0
    many = [value] * ((MAX_NODES - 4) // (1 + own))
    plain([[many], {}], _BYTES)
    assert isinstance(await _read_call(many), CallMessage)
    assert isinstance(await _read_call(["9" * 308, *many[1:]]), CallMessage)
    with pytest.raises(ViolationError, match="too many values"):
        await _read_call([*many, *many[:10]])


async def test_arguments_may_be_as_deep_as_the_sandbox_lets_them_and_no_deeper() -> None:
    deepest: Json = []
    for _ in range(62):
        deepest = [deepest]
    plain([[deepest], {}], _BYTES)
    assert isinstance(await _read_call(deepest), CallMessage)
    with pytest.raises(ValueError, match="nested deeper"):
        plain([[[[deepest]]], {}], _BYTES)
    with pytest.raises(ViolationError, match="nested too deep"):
        await _read_call([[deepest]])


def test_a_value_may_take_as_many_bytes_as_are_allowed_and_no_more() -> None:
    assert plain("a" * 98, 100) == "a" * 98  # and its quotes
    with pytest.raises(ValueError, match="too large"):
        plain("a" * 99, 100)


@pytest.mark.parametrize(("bits", "fits"), [(1023, True), (1024, False)])
async def test_integers_beyond_the_range_of_a_float_are_rejected(bits: int, fits: bool) -> None:
    number = (1 << bits) - 1
    if fits:
        assert isinstance(await _read_call(-number, 0.5, "9" * 400), CallMessage)
    else:
        with pytest.raises(ViolationError, match="no honest sandbox"):
            await _read_call(-number)


@pytest.mark.parametrize(
    "forged",
    [
        {"$": "bytes", "v": "no base64!"},
        {"$": "bytes", "v": ["AAAA"]},
        {"$": "object", "v": "AAAA"},
        {"$": "set", "v": []},
        {"$": ["bytes"], "v": ""},
        {"a": [{"$": "bytes"}]},
    ],
)
async def test_forged_bytes_are_rejected(forged: Json) -> None:
    with pytest.raises(ViolationError, match="no honest sandbox"):
        await _read_call(forged)


async def test_padding_does_not_buy_a_run_more_bytes_than_its_calls_need() -> None:
    stream = asyncio.StreamReader()
    frame = b" " * 1000 + b'["out","n",""]'
    stream.feed_data((len(frame).to_bytes(LENGTH_BYTES, "big") + frame) * 10_000)
    reader = MessageReader(stream, 1000)
    reader.expect("n", messages=10_000)
    with pytest.raises(ViolationError, match="bytes"):
        await _read_all(reader)


def test_a_result_of_the_most_values_is_copied_fast() -> None:
    value = [[number] for number in range(MAX_NODES // 2 - 1)]
    with within():
        assert plain(value, _BYTES) == value
