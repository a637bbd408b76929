"""Large texts of others cost the event loop little: they are read beside it, or fast."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import httpx

from app.apis.calls import http_call
from app.apis.calls.http_call import HttpCaller, WireRequest
from app.base.errors import HostError
from app.base.text import visible
from tests.support.every_row import every_row
from tests.support.raw_server import raw_server

MANY = 50_000
BODIES = {
    "numbers that JSON lacks": ("application/json", b"[" + b"NaN," * MANY + b"1]"),
    "JSON in another character set": ("application/json; charset=cp1252", b'["\xe9"' + b",1" * MANY + b"]"),
    "no JSON": ("application/json", b"[" * 4 * MANY),
    "events": ("text/event-stream", b"data: {}\n\n" * MANY),
    "text": ("text/plain; charset=utf-16", b"ab" * 2 * MANY),
    "an error": ("application/json", b'{"a": "' + b"x" * 4 * MANY),
}
UNSEEN = ("\0", "\u200b", "\U000e0041", "\ufe0f", "a\ufe0f", "\r", "\u200bé", "\x1bé\r")


@contextmanager
def functions_of_this_thread(*modules: object) -> Iterator[set[str]]:
    """The names of the modules' functions that this thread enters."""
    files = {getattr(module, "__file__", "") for module in modules}
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            entered.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


async def functions_that_read(content_type: str, body: bytes, status: bytes = b"200 OK") -> set[str]:
    """Those of the module that receives an answer, in this thread."""
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    answer = head % (status, content_type.encode(), len(body)) + body
    async with raw_server(answer) as url, httpx.AsyncClient() as client:
        request = WireRequest("GET", url, {})
        with functions_of_this_thread(http_call) as entered, suppress(HostError):
            await HttpCaller(client, timeout=60).send(request)
    return entered


async def test_a_large_answer_is_read_beside_the_loop_whatever_it_is() -> None:
    sending = await functions_that_read("application/json", b"", b"204 No Content")
    assert sending
    with every_row() as row:
        for kind, (content_type, body) in BODIES.items():
            with row(kind):
                status = b"400 No" if kind == "an error" else b"200 OK"
                entered = await functions_that_read(content_type, body, status)
                assert entered - sending <= {"is_success", "media_type"}


def test_characters_that_cannot_be_seen_take_no_function_of_python_each() -> None:
    with every_row() as row:
        for unseen in UNSEEN:
            entered = 0

            def note(_: FrameType, event: str, __: object) -> None:
                nonlocal entered
                entered += event in ("call", "c_call")

            text = unseen * (10_000 // len(unseen))
            sys.setprofile(note)
            try:
                visible(text)
            finally:
                sys.setprofile(None)
            with row(unseen):
                assert entered < 100
