"""Models of others, behind the chat completions that OpenAI's API and its many likenesses speak."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from app.engine.tokenizer import Message
from app.errors import EngineError, EngineRefusalError

_PASSING = {408, 409, 425, 429}  # refusals that are over in a while
_NOWHERE = (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL)
_REASON = 300  # characters of an error's text


class Answer(msgspec.Struct, frozen=True):
    """What the model said, and whether it came to its end: "stop", or "length"."""

    text: str
    finish: str


class _Said(msgspec.Struct):
    content: str | None = None  # none where the model refuses, or calls a tool


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


class ChatEndpoint:
    """Asks one model. Use it as an async context manager.

    `url` is a server (its API is taken to lie under /v1) or the base of an API, as other clients take it.
    """

    def __init__(self, url: str, model: str, *, key: str = "", timeout: float = 120, max_tokens: int = 0) -> None:
        self.model = model
        self._url = f"{_base(url)}/chat/completions"
        self._timeout = timeout
        self._max_tokens = max_tokens  # 0: as many as the endpoint gives
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)  # who asks limits how many ask at once
        patience = httpx.Timeout(timeout, connect=min(timeout, 10))
        self._answered = False  # ever
        self._http = httpx.AsyncClient(headers=headers, timeout=patience, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.aclose()

    async def ask(self, messages: Sequence[Message], temperature: float) -> Answer:
        """The next message. Raises EngineRefusalError where asking again would not help, else EngineError."""
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
                f"{self._url} does not answer as a chat endpoint ({error}): correct the expert's option url"
            ) from error
        return Answer(choice.message.content or "", "length" if choice.finish_reason == "length" else "stop")

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        """Where nobody was ever there to answer, the URL is taken for wrong: asking again would not help."""
        try:
            reply = await self._http.post(self._url, json=body)
        except httpx.TimeoutException as error:
            raise EngineError(
                f"{self._url} did not answer within {self._timeout:g} s: give it more with --timeout, "
                "or ask it less at once with --at-once"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            wrong = isinstance(error, _NOWHERE) and not self._answered
            raise (EngineRefusalError if wrong else EngineError)(
                f"{self._url} cannot be reached ({error or type(error).__name__}): is the URL right, is it up?"
            ) from error
        self._answered = True
        return reply

    def _failure(self, reply: httpx.Response) -> EngineError:
        code, said = reply.status_code, _reason(reply)
        if code in {401, 403}:
            return EngineRefusalError(
                f"{self._url} refuses the key ({code}: {said}): name the variable that holds a good one "
                "with --api-key-env"
            )
        if code == httpx.codes.NOT_FOUND:
            return EngineRefusalError(
                f"{self._url} has no model {self.model!r} (404: {said}): correct the expert's options model or url"
            )
        if reply.is_client_error and code not in _PASSING:
            return EngineRefusalError(f"{self._url} refuses to answer ({code}: {said})")
        return EngineError(f"{self._url} is unable to answer ({code}: {said})")


def _base(url: str) -> str:
    """
    >>> _base("http://localhost:8000/"), _base("https://api.example.com/v1"), _base("https://example.com/api/v3")
    ('http://localhost:8000/v1', 'https://api.example.com/v1', 'https://example.com/api/v3')
    """
    plain = url.rstrip("/").removesuffix("/chat/completions")
    return plain if "/" in plain.partition("://")[2] else f"{plain}/v1"


def _reason(reply: httpx.Response) -> str:
    """The message of the error body, where it has one as OpenAI's does; otherwise the start of whatever came."""
    try:
        return str(reply.json()["error"]["message"])[:_REASON]
    except (ValueError, KeyError, TypeError):
        return reply.text[:_REASON]
