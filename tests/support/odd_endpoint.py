"""An endpoint of chat completions that answers as its test says, on a socket."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import msgspec

from tests.support.listening_app import listening_app


class Reply(msgspec.Struct, frozen=True):
    """A body that is no text is sent as JSON."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})


Answer = Callable[[Mapping[str, Any]], Reply]
"""Of the JSON of a request to /v1/chat/completions."""


class OddEndpoint:
    """Answers each request by `answer`, or by the next of `replies` while there are some; GETs by their path."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer: Answer = answer or (lambda _: said("Hello."))
        self.replies: list[Reply] = []
        self.pages: dict[str, Reply] = {}
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with listening_app(self, lifespan="off") as url:
            yield url

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        reply = self._reply(scope["path"], body)
        raw = reply.body if isinstance(reply.body, bytes) else _text(reply.body).encode()
        headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": raw})

    def _reply(self, path: str, body: bytes) -> Reply:
        if path != "/v1/chat/completions":
            return self.pages.get(path, Reply({"error": {"message": "not found"}}, 404))
        self.requests.append(json.loads(body))
        return self.replies.pop(0) if self.replies else self.answer(self.requests[-1])


def said(content: Any, finish: str | None = "stop", usage: Any = None, **more: Any) -> Reply:
    """An answer with this text; `more` are fields of its message."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **more}, "finish_reason": finish}
    return Reply({"choices": [choice], **({"usage": usage} if usage is not None else {})})


def refused(message: str, status: int = 400, code: str | None = None, **headers: str) -> Reply:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


def _text(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)
