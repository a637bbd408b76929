"""Puts the parts of a streamed chat completion together, as they came in a stream of server-sent events. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from app.records import Json
from app.untrusted.json_text import JsonError

_STREAM: Final = re.compile(rb"\s*(?:data|event|id|retry)?:")  # that such a body begins with; ":" is a comment
_MAX_LINES: Final = 400_000  # two for a token, or four with carriage returns
_TEXTS: Final = ("reasoning_content", "reasoning", "refusal")


class _Delta(msgspec.Struct, frozen=True):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Part(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(list[_Part], float_hook=float)


def is_streamed(body: bytes) -> bool:
    """
    >>> is_streamed(b'data: {}'), is_streamed(b': wait'), is_streamed(b'{"data": 1}')
    (True, True, False)
    """
    return _STREAM.match(body) is not None


def whole_answer(body: bytes) -> Json:
    """The first choice as an answer that was not streamed has it, or the error with which it ended.

    Raises JsonError for what is no stream of completions, such as one that broke off, or has too many lines.

    >>> parts = [{"choices": [{"delta": {"content": text}}]} for text in ("Hel", "lo.")]
    >>> body = b"".join(b"data: " + msgspec.json.encode(each) + b"\\n\\n" for each in parts)
    >>> whole_answer(body)["choices"][0]["message"]
    {'content': 'Hello.'}
    """
    if body.count(b"\n") + body.count(b"\r") > _MAX_LINES:
        raise JsonError(f"it has more than {_MAX_LINES:,} lines")
    try:
        parts = _DECODER.decode(b"[" + b",".join(_payloads(body)) + b"]")
    except (RecursionError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JsonError(str(error)) from error
    for part in parts:
        if part.error:
            return {"error": part.error}
    choices = [each for part in parts for each in part.choices or () if each.index == 0]
    deltas = [each.delta for each in choices if each.delta is not None]
    message: dict[str, Json] = {"content": _content([each.content for each in deltas])}
    for name in _TEXTS:
        if text := "".join(value for each in deltas if isinstance(value := getattr(each, name), str)):
            message[name] = text
    if any(each.tool_calls for each in deltas):
        message["tool_calls"] = True
    ended = next((each.finish_reason for each in reversed(choices) if each.finish_reason), None)
    whole = [{"message": message, "finish_reason": ended}] if choices else []
    return {"choices": whole, "usage": next((part.usage for part in reversed(parts) if part.usage), None)}


def _content(given: list[Any]) -> Json:
    """A text, or the parts of one that has others than text."""
    if not any(isinstance(each, list) for each in given):
        return "".join(each for each in given if isinstance(each, str))
    return [part for each in given for part in (each if isinstance(each, list) else [each]) if part is not None]


def _payloads(body: bytes) -> Iterator[bytes]:
    """The JSON of each event. One that is called an error is one."""
    name, data = b"", list[bytes]()
    for line in [*body.splitlines(), b""]:
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip()
        elif field == b"data":
            data.append(value.strip())
        elif not line:
            payload = b"\n".join(data)
            if payload and payload != b"[DONE]":
                yield b'{"error":' + payload + b"}" if name == b"error" else payload
            name, data = b"", []
