"""A client for chat completions, as in OpenAI's API and compatible ones."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from app.engine.tokenizer import Message
from app.errors import EngineError, EngineRefusalError

_TRANSIENT = {408, 409, 425, 429}  # client errors that are worth a retry
_UNREACHABLE = (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL)
_MAX_REASON = 300  # characters of an error's text


class ChatAnswer(msgspec.Struct, frozen=True):
    """The text of an answer, and why it ended: "stop", or "length" if it was cut off."""

    text: str
    finish: str


class _Message(msgspec.Struct):
    content: str | None = None  # null where the model refuses, or calls a tool


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


class ChatEndpoint:
    """Sends requests to one model. Use it as an async context manager.

    `url` is a server, whose API is expected under /v1, or the base URL of an API, as in other clients.
    """

    def __init__(self, url: str, model: str, *, key: str = "", timeout: float = 120, max_tokens: int = 0) -> None:
        self.model = model
        self._url = f"{_base(url)}/chat/completions"
        self._timeout = timeout
        self._max_tokens = max_tokens  # 0: the endpoint's default
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # The caller limits concurrency. Servers close idle connections after 5 s or more: no request meets one.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
        timeouts = httpx.Timeout(timeout, connect=min(timeout, 10))
        self._has_answered = False
        self._http = httpx.AsyncClient(headers=headers, timeout=timeouts, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.aclose()

    async def ask(self, messages: Sequence[Message], temperature: float) -> ChatAnswer:
        """The next message. Raises EngineRefusalError if a retry would not help, otherwise EngineError."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": temperature,
        }
        if self._max_tokens:
            body["max_tokens"] = self._max_tokens
        reply = await self._post(body)
        if reply.status_code != httpx.codes.OK:
            raise self._failure(reply)
        try:
            choice = msgspec.json.decode(reply.content, type=_Reply).choices[0]
        except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
            raise EngineRefusalError(
                f"{self._url} does not answer like a chat endpoint ({error}): correct the option url"
            ) from error
        return ChatAnswer(choice.message.content or "", "length" if choice.finish_reason == "length" else "stop")

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        """Raises EngineRefusalError for an endpoint that has never answered: its URL is probably wrong."""
        try:
            reply = await self._http.post(self._url, json=body)
        except httpx.TimeoutException as error:
            raise EngineError(
                f"{self._url} did not answer within {self._timeout:g} s: raise --timeout, or lower --at-once"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            wrong = isinstance(error, _UNREACHABLE) and not self._has_answered
            raise (EngineRefusalError if wrong else EngineError)(
                f"{self._url} cannot be reached ({error or type(error).__name__}): check its URL, and that it runs"
            ) from error
        self._has_answered = True
        return reply

    def _failure(self, reply: httpx.Response) -> EngineError:
        code, reason = reply.status_code, _reason(reply)
        if code in {401, 403}:
            return EngineRefusalError(
                f"{self._url} refuses the key ({code}: {reason}): name the variable that holds a good one, "
                "of an expert with --api-key-env"
            )
        if code == httpx.codes.NOT_FOUND:
            return EngineRefusalError(
                f"{self._url} has no model {self.model!r} (404: {reason}): correct the option model or url"
            )
        if reply.is_client_error and code not in _TRANSIENT:
            return EngineRefusalError(f"{self._url} refuses to answer ({code}: {reason})")
        return EngineError(f"{self._url} is unable to answer ({code}: {reason})")


def _base(url: str) -> str:
    """
    >>> _base("http://localhost:8000/"), _base("https://api.example.com/v1"), _base("https://example.com/api/v3")
    ('http://localhost:8000/v1', 'https://api.example.com/v1', 'https://example.com/api/v3')
    """
    plain = url.rstrip("/").removesuffix("/chat/completions")
    return plain if "/" in plain.partition("://")[2] else f"{plain}/v1"


def _reason(reply: httpx.Response) -> str:
    """The message of an error body in OpenAI's format, otherwise the start of the body."""
    try:
        return str(reply.json()["error"]["message"])[:_MAX_REASON]
    except (ValueError, KeyError, TypeError):
        return reply.text[:_MAX_REASON]
