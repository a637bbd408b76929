"""The client of hosted models: chat completions of OpenAI's API, and of the many that are only like it.

It goes without what an endpoint refuses (stop strings, a temperature, the name of the limit of tokens), does
what one leaves out (stop strings, the count of tokens), and reads thoughts from wherever they stand. What is
left is an answer, or an error with the endpoint's own reason. The key is in no error, and goes to no other
host.
"""

import asyncio
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from http import HTTPStatus
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Literal, Self, cast
from urllib.request import getproxies

import httpcore
import httpx
import httpx2
import msgspec
import openai
import structlog

from app.base.errors import EngineError, EngineRefusalError, HostError, NoConnectionError
from app.base.retry_after import retry_after
from app.base.text import numbered
from app.base.untrusted import JsonError, decode_json
from app.base.untrusted_http import BodyError, HttpTransport, read_into
from app.base.values import Json
from app.engine.protocol import MAX_BROKEN, ChatAnswer, Tokens, Told
from app.engine.tokenizer import CLOSED_THOUGHT, OPEN_THOUGHT, Message

_STREAM: Final = re.compile(rb"\s*(?:data|event|id|retry)?:")  # that such a body begins with; ":" is a comment
_MAX_LINES: Final = 400_000  # two for a token, or four with carriage returns
_TEXTS: Final = ("reasoning_content", "reasoning", "refusal")

log = structlog.get_logger(__name__)

LimitField = Literal["max_tokens", "max_completion_tokens"]
Thoughts = Literal["none", "reasoning_content", "reasoning", "parts", "tags"]
_TRANSIENT = {408, 409, 425, 429}  # client errors that are worth a retry
_TOO_LATE = {504, 524}  # of a gateway: what is behind it was asked, and may still be answering
_UNREACHABLE = (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol)
_NO_MONEY = {"insufficient_quota", "billing_hard_limit_reached"}  # codes of a 429 that waiting does not end
_STATUS_OF_CODE = {"invalid_api_key": 401, "model_not_found": 404, "insufficient_quota": 402}
_UNSUPPORTED_PARAMETER = {400, 422}
_MAX_REASON = 300  # characters of an error's text
_MAX_BODY, _MAX_ERROR = 16 << 20, 64 << 10  # bytes of an answer, and of what is read of an error
_MAX_CHARS = 2_000_000  # of an answer and its thoughts, which every later prompt and the database hold
_MAX_TOKENS = 10**8  # of a request: what says more does not count
_MAX_VALUES, _MAX_DEPTH = 300_000, 60  # of its JSON
_MAX_STOPS = 4  # OpenAI's limit
_CHARS_PER_TOKEN = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # seconds between attempts
_TOLD_SECONDS = 1.0  # a pause that is worth a word: the third in a row, or one that was asked for
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 2.0  # servers close an idle connection after 5 s or more: no request meets that
_NAMES_LIMIT = re.compile(r"max_(completion_)?tokens")
_NAMES_STREAM = re.compile(r"\bstream(ing|ed)?\b")
_NAMES_STREAM_USAGE = re.compile(r"stream_options|include_usage")
_NAMES_SYSTEM = re.compile(r"\bsystem['\"`]?\W+(role|messages?|prompts?)\b|roles?\b.*\bsystem\b")
_NOT_KNOWN = re.compile(
    r"support|unknown|unrecogni[sz]ed|unexpected|permitted|allowed|accept|extra|deprecated|invalid param"
)
_THOUGHT = re.compile(rf"\s*(?:{CLOSED_THOUGHT}|{OPEN_THOUGHT})", re.DOTALL)  # that a text begins with
_LENGTH = {"length", "max_tokens", "max_output_tokens"}
_BROKEN_OFF = {"", "error", "abort", "cancelled", "network_error"}
_OF_BODY: Final = {"content-encoding", "content-length", "content-type", "transfer-encoding"}


class _Delta(msgspec.Struct, frozen=True):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _PartChoice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Part(msgspec.Struct, frozen=True):
    choices: list[_PartChoice] | None = None
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


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint can do with its model, as far as it is known."""

    limit: LimitField = "max_tokens"  # the field that limits the tokens of an answer
    temperature: bool = True  # it may be set
    stops: bool = True  # it ends an answer at a stop string
    system: bool = True  # it takes messages of the system, which otherwise begin the user's first one
    thoughts: Thoughts = "none"  # where they stand: in a field beside the text, in parts of it, or between tags
    usage: bool = True  # it counts tokens
    streams: bool = False  # it answers only in a stream
    stream_usage: bool = True  # it counts tokens in one where it is asked to
    context: int | None = None  # tokens of prompt and answer together; None: it does not say
    lists: str = ""  # names in its list of models, if that of its model is not among them

    @property
    def remark(self) -> str | None:
        """That another model than the named one may answer, as some servers take any name."""
        return f"the endpoint lists only {self.lists}: another model may answer" if self.lists else None


class Remedies(msgspec.Struct, frozen=True):
    """What to do about an error, in the words of whoever configured the endpoint."""

    key: str = "give the model a good one"
    model: str = "correct the model's name or its URL"
    url: str = "check its URL, and that it runs"
    slow: str = "is it overloaded?"


class WithheldError(EngineRefusalError):
    """The endpoint's own filter withheld the answer to these messages."""


class _BusyError(EngineError):
    """Another try may succeed, after so many seconds."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class _BrokenError(EngineError):
    """The request was sent, and what came back, so many characters, is no whole answer. A new one may be."""

    def __init__(self, message: str, received: int = 0) -> None:
        super().__init__(message)
        self.received = received


class Request(msgspec.Struct, frozen=True):
    """What is asked for; `max_tokens` of 0 leaves the limit to the endpoint."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float
    stop_strings: Sequence[str] = ()

    def body(self, model: str, abilities: Abilities) -> dict[str, Any]:
        """Models that think get no stop strings: most endpoints would end a thought at one."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [
                {"role": each.role, "content": each.content}
                for each in (self.messages if abilities.system else _without_system(self.messages))
            ],
        }
        if abilities.temperature:
            body["temperature"] = self.temperature
        if self.max_tokens:
            body[abilities.limit] = self.max_tokens
        if self.stop_strings and abilities.stops and abilities.thoughts == "none":
            body["stop"] = list(self.stop_strings[:_MAX_STOPS])
        if abilities.streams:
            body["stream"] = True
            if abilities.stream_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def without(self, refused: str, abilities: Abilities, known: Abilities) -> Abilities | None:
        """Without the parameter that a refusal names, in a stream where it asks for one, or with the other name of
        the limit, once: `known` is what the first try went by.
        """
        text = refused.lower()
        if abilities.streams and abilities.stream_usage and _NAMES_STREAM_USAGE.search(text):
            return msgspec.structs.replace(abilities, stream_usage=False)
        if _NAMES_STREAM.search(text) and not abilities.streams:
            return msgspec.structs.replace(abilities, streams=True)
        if "temperature" in text and abilities.temperature:
            return msgspec.structs.replace(abilities, temperature=False)
        if re.search(r"\bstop\b", text) and "stop" in self.body("", abilities):
            return msgspec.structs.replace(abilities, stops=False)
        if (
            _NAMES_SYSTEM.search(text)
            and abilities.system
            and any(each.role == "system" for each in self.messages)
        ):
            return msgspec.structs.replace(abilities, system=False)
        if _NAMES_LIMIT.search(text) and _NOT_KNOWN.search(text) and abilities.limit == known.limit:
            is_new = known.limit == "max_completion_tokens"
            return msgspec.structs.replace(abilities, limit="max_tokens" if is_new else "max_completion_tokens")
        return None


class RawAnswer(msgspec.Struct, frozen=True):
    """An answer before a stop string is looked for in it."""

    answer: ChatAnswer
    thoughts: Thoughts
    counted: bool


class OpenAiChatModel:
    """Implements `ChatModel`. Use it as an async context manager, unless it is given the `http` client to use.

    `url` is a server, whose API is expected under /v1, or the base URL of an API, as in other clients. `abilities`
    are what is known of it before; it finds out the rest as it answers. `patience` are seconds of retries, also
    while one cannot be reached that `has_answered` before.
    """

    def __init__(  # noqa: PLR0913  an endpoint, and how to treat it
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        abilities: Abilities = Abilities(),  # noqa: B008  frozen
        http: httpx.AsyncClient | None = None,
        timeout: float = 120.0,
        patience: float = 120.0,
        remedies: Remedies = Remedies(),  # noqa: B008  frozen
        has_answered: bool = False,
    ) -> None:
        self.model = model
        self.abilities = abilities
        self.base = _base_of(url)
        self.url = f"{self.base}/chat/completions"
        self._key, self._timeout, self._patience, self._remedies = key.strip(), timeout, patience, remedies
        self._own = open_http() if http is None else None
        self._http = http or self._own
        self.has_answered = has_answered
        self.told: Told | None = None
        self.lost = Tokens()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._own is not None:
            await self._own.aclose()

    async def answer(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        stop_strings: Sequence[str] = (),
    ) -> ChatAnswer:
        """`max_tokens` of 0 leaves the limit to the endpoint. Raises WithheldError if its filter keeps the answer
        back.
        """
        request = Request(messages, max_tokens, temperature, stop_strings)
        found = await self.raw_answer(request)
        return _until_stop(found.answer, stop_strings)

    async def _one_try(self, request: Request) -> RawAnswer:
        """With as many requests as it takes to learn which parameters the endpoint refuses."""
        abilities = known = self.abilities
        while True:
            try:
                found = await self._once(request, abilities)
            except EngineRefusalError as refusal:
                fewer = None
                if refusal.code in _UNSUPPORTED_PARAMETER:
                    fewer = request.without(str(refusal), abilities, known)
                if fewer is None:
                    raise
                abilities = fewer
                continue
            thoughts = abilities.thoughts if found.thoughts == "none" else found.thoughts
            self.abilities = msgspec.structs.replace(abilities, thoughts=thoughts, usage=found.counted)
            return found

    @property
    def context_length(self) -> int | None:
        """Tokens of a conversation at most, prompt included, as far as the endpoint told."""
        return self.abilities.context

    @property
    def thinks(self) -> bool:
        return self.abilities.thoughts != "none"

    async def get(self, url: str) -> Json:
        """The JSON at an address of the same server. Raises as `answer`, after one try."""
        reply = await self._sent(url)
        self._check(reply)
        return self._decoded(reply)

    async def raw_answer(self, request: Request) -> RawAnswer:
        """Raises as `answer`."""
        clock = asyncio.get_running_loop().time
        until, pause, broken, lost = clock() + self._patience, _FIRST_PAUSE, 0, self.lost
        while True:
            try:
                return await self._one_try(request)
            except EngineRefusalError:
                raise
            except EngineError as error:
                broken += isinstance(error, _BrokenError)
                asked = error.seconds if isinstance(error, _BusyError) else 0.0
                wait = max(asked, pause * random.uniform(1, 1.25))
                if broken >= MAX_BROKEN or clock() + wait > until:
                    if broken:
                        raise _given_up(error, broken, self.lost - lost) from error
                    raise
                log.warning("a hosted model does not answer, retrying", cause=str(error), seconds=wait)
                if self.told is not None and wait >= _TOLD_SECONDS:
                    await self.told(str(error))
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _once(self, request: Request, abilities: Abilities) -> RawAnswer:
        """Whatever is sent and brings no answer is `lost`, also if the caller is cancelled meanwhile."""
        try:
            reply = await self._sent(self.url, request.body(self.model, abilities))
            self._check(reply)
        except (_BrokenError, asyncio.CancelledError) as error:
            self.lost += _estimated(request.messages, error.received if isinstance(error, _BrokenError) else 0)
            raise
        decoded: Json = None
        try:
            streamed = is_streamed(reply.content)  # a long one takes a second
            decoded = await asyncio.to_thread(self._decoded, reply) if streamed else self._decoded(reply)
            return self._read(decoded, request.messages)
        except EngineError:
            if (used := _counted(decoded)) is None and not _is_put_off(decoded):
                used = _estimated(request.messages, _written(decoded, reply.content))
            self.lost += used or Tokens()
            raise

    def _read(self, reply: Json, messages: Sequence[Message]) -> RawAnswer:
        if isinstance(reply, dict) and (error := reply.get("error")):
            failure = self._failure(_status_of(error), _reason_of(reply, ""), {})
            raise failure if _is_put_off(reply) else _BrokenError(str(failure))
        try:
            choice = msgspec.convert(reply, _Reply).choices[0]
        except (msgspec.ValidationError, IndexError) as error:
            raise self._alien(str(error)) from error
        return self._read_choice(choice, reply, messages)

    def _read_choice(self, choice: "_Choice", reply: Json, messages: Sequence[Message]) -> RawAnswer:
        """Raises EngineError for an answer that broke off, EngineRefusalError for one without text or
        with too much.
        """
        message, ended = choice.message, (choice.finish_reason or "").lower()
        text, thought, thoughts = message.read()
        if ended in _BROKEN_OFF:
            raise _BrokenError(f"{self.url} ended its answer early (finish_reason: {ended or 'none'}): try again")
        if (length := len(text) + len(thought)) > _MAX_CHARS:
            raise EngineRefusalError(
                f"{self.url} wrote an answer of {length:,} characters, of which at most {_MAX_CHARS:,} are read: "
                "does it keep to the number of tokens that it is given?"
            )
        if ended == "content_filter":
            raise WithheldError(
                f"{self.url} withheld its answer (content_filter): its filter refuses these messages"
            )
        if not text and message.tool_calls:
            raise EngineRefusalError(
                f"{self.url} called a tool instead of writing text, and none was offered: switch its parser of "
                "tool calls off, or choose another model"
            )
        counted = _counted(reply)
        tokens = counted or _estimated(messages, len(text + thought))
        answer = ChatAnswer(
            text=text, thought=thought, finish="length" if ended in _LENGTH else "stop", tokens=tokens
        )
        return RawAnswer(answer, thoughts, counted is not None)

    async def _sent(self, url: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Raises EngineRefusalError for an endpoint that has never answered: its URL is probably wrong."""
        options = {} if self._key else {"headers": {"Authorization": openai.Omit()}}
        try:
            async with asyncio.timeout(self._timeout):
                send: Any = self._client.get if body is None else partial(self._client.post, body=body)
                reply: httpx.Response = await send(url, cast_to=httpx.Response, options=options)
        except openai.APIStatusError as error:
            reply = cast("httpx.Response", error.response)
        except (TimeoutError, openai.APITimeoutError) as error:
            if isinstance(error.__cause__, httpx.ConnectTimeout):
                raise self._unreachable("no connection in time") from error
            raise _BrokenError(f"{url} did not answer within {self._timeout:g} s: {self._remedies.slow}") from None
        except NoConnectionError as error:
            raise self._unreachable(error.message) from error
        except HostError as error:
            raise EngineRefusalError(f"{url} cannot be used: {error.message}") from error
        except (openai.OpenAIError, httpx.InvalidURL, httpx2.InvalidURL, UnicodeError) as error:
            cause = error.__cause__ or error
            reason = self._scrubbed(str(cause)) or type(cause).__name__
            if isinstance(cause, httpx.HTTPError) and not isinstance(cause, _UNREACHABLE):
                received = cause.received if isinstance(cause, _CutOffError) else 0
                raise _BrokenError(f"{url} broke its answer off ({reason}): try again", received) from None
            raise self._unreachable(reason) from None
        self.has_answered = True
        return reply

    @cached_property
    def _client(self) -> openai.AsyncOpenAI:
        """Nothing of the environment: its keys and headers are for OpenAI, and this may be another host. Raises
        InvalidURL, and EngineRefusalError for a key that no header can hold.
        """
        if not self._key.isascii() or not self._key.isprintable():
            raise EngineRefusalError(
                f"the key for {self.url} has a character that no key has: {self._remedies.key}"
            )
        client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            admin_api_key="",
            base_url=self.base,
            max_retries=0,
            timeout=httpx2.Timeout(self._timeout, connect=min(self._timeout, _CONNECT_SECONDS)),
            http_client=cast("Any", self._http),
        )
        client.organization = client.project = None
        client._custom_headers = {}  # of OPENAI_CUSTOM_HEADERS
        return client

    def _decoded(self, reply: httpx.Response) -> Json:
        try:
            if is_streamed(reply.content):
                return whole_answer(reply.content)
            return decode_json(reply.content, max_values=_MAX_VALUES, max_depth=_MAX_DEPTH)
        except JsonError as error:
            if reply.content.lstrip().startswith(b"{") or is_streamed(reply.content):
                raise _BrokenError(f"{self.url} broke its answer off ({error}): try again") from error
            raise self._alien(str(error)) from error

    def _check(self, reply: httpx.Response) -> None:
        if reply.is_redirect:
            place = self._scrubbed(reply.headers.get("location", "an unnamed place"))
            raise EngineRefusalError(
                f"{self.url} redirects to {place[:_MAX_REASON]}, and the key is not sent on: name that URL instead"
            )
        if not reply.is_success:
            decoded: Json = None
            with suppress(JsonError):
                decoded = decode_json(reply.content, max_values=_MAX_VALUES, max_depth=_MAX_DEPTH)
            raise self._failure(
                reply.status_code, _reason_of(decoded, reply.text), reply.headers, _code_of(decoded)
            )

    def _failure(
        self, status: int, said: str, headers: "httpx.Headers | dict[str, str]", code: str = ""
    ) -> EngineError:
        reason = self._scrubbed(said)[:_MAX_REASON]
        if status in {401, 403}:
            return EngineRefusalError(
                f"{self.url} refuses the key ({status}: {reason}): {self._remedies.key}", status
            )
        if status == HTTPStatus.NOT_FOUND:
            if code in _STATUS_OF_CODE or "model" in reason.lower() or self.model in reason:
                missing = f"{self.url} has no model {self.model!r} (404: {reason}): {self._remedies.model}"
            else:
                missing = (
                    f"{self.url}: there are no chat completions at this URL (404: {reason}): {self._remedies.url}"
                )
            return EngineRefusalError(missing, status)
        if code in _NO_MONEY or (400 <= status < 500 and status not in _TRANSIENT):
            return EngineRefusalError(f"{self.url} refuses to answer ({status}: {reason})", status)
        unable = f"{self.url} is unable to answer ({status}: {reason})"
        return _BrokenError(unable) if status in _TOO_LATE else _BusyError(unable, retry_after(headers) or 0.0)

    def _alien(self, error: str) -> EngineRefusalError:
        return EngineRefusalError(
            f"{self.url} does not answer like a chat endpoint ({error}): {self._remedies.model}"
        )

    def _unreachable(self, reason: str) -> EngineError:
        kind = EngineError if self.has_answered else EngineRefusalError
        return kind(f"{self.url} cannot be reached ({reason}): {self._remedies.url}")

    def _scrubbed(self, text: str) -> str:
        plain = " ".join(text.split())
        return plain.replace(self._key, "***") if self._key else plain


class _Message(_Delta, frozen=True):
    content: str | list[Any] | None = None  # null where the model refuses, or calls a tool

    def read(self) -> tuple[str, str, Thoughts]:
        """The text, a thought beside it, and where the thought was."""
        if isinstance(self.content, list):
            text, thought = _of_parts(self.content)
        else:
            text, thought = self.content or "", ""
        if not text and isinstance(self.refusal, str):
            text = self.refusal
        if isinstance(self.reasoning_content, str) and self.reasoning_content:
            return text, self.reasoning_content, "reasoning_content"
        if isinstance(self.reasoning, str) and self.reasoning:
            return text, self.reasoning, "reasoning"
        if thought:
            return text, thought, "parts"
        return text, "", "tags" if _THOUGHT.match(text) else "none"


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


class _BoundedClient(httpx.AsyncClient):
    """Reads every body whole, within a bound, compressed or not. Of an error it keeps the beginning; every text
    is UTF-8, as decoding some of the charsets that an endpoint can name takes hours.
    """

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:  # noqa: ARG002
        response, body = await super().send(request, stream=True, **options), bytearray()
        try:
            await read_into(body, response, _MAX_BODY)
        except (BodyError, httpx.HTTPError) as error:
            if response.is_success:
                reason = f"its answer {error}" if isinstance(error, BodyError) else str(error)
                raise _CutOffError(reason, len(body), request) from error
        finally:
            await response.aclose()
        kept_body = bytes(body if response.is_success else body[:_MAX_ERROR])
        kept = [(name, value) for name, value in response.headers.items() if name not in _OF_BODY]
        return httpx.Response(response.status_code, headers=kept, content=kept_body, request=request)


class _CutOffError(httpx.DecodingError):
    """An answer ended after so many bytes, or cannot be decoded beyond them."""

    def __init__(self, message: str, received: int, request: httpx.Request) -> None:
        super().__init__(message, request=request)
        self.received = received


def open_http(
    network: httpcore.AsyncNetworkBackend | None = None, tls: SSLContext | None = None
) -> httpx.AsyncClient:
    """A client for endpoints, which follows no redirect. Whoever calls limits the requests at a time.

    Every connection goes through `network`, if there is one; otherwise through the proxies that the environment
    names, if it does.
    """
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS)
    if network is None and getproxies():
        return _BoundedClient(verify=tls or True, limits=limits)
    return _BoundedClient(transport=HttpTransport(limits, tls, network), trust_env=False)


def _base_of(url: str) -> str:
    """
    >>> _base_of("http://localhost:8000/"), _base_of("https://api.example.com/v1"), _base_of("https://example.com/api/v3")
    ('http://localhost:8000/v1', 'https://api.example.com/v1', 'https://example.com/api/v3')
    """
    plain = url.strip().rstrip("/").removesuffix("/chat/completions")
    return plain if "/" in plain.partition("://")[2] else f"{plain}/v1"


def _until_stop(answer: ChatAnswer, stop_strings: Iterable[str]) -> ChatAnswer:
    """Without the first stop string and what follows it. One in a thought between tags ends nothing.

    >>> _until_stop(ChatAnswer(text="<think>a.b</think>c.d", finish="length"), ["."]).text
    '<think>a.b</think>c'
    """
    text, thought = answer.text, _THOUGHT.match(answer.text)
    start = thought.end() if thought else 0
    found = [at for stop in stop_strings if stop and (at := text.find(stop, start)) >= 0]
    return msgspec.structs.replace(answer, text=text[: min(found)], finish="stop") if found else answer


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """
    >>> _without_system([Message("system", "Be kind."), Message("user", "Hi!")])[0].content
    'Be kind.\\n\\nHi!'
    """
    said = "\n\n".join(each.content for each in messages if each.role == "system")
    others = [each for each in messages if each.role != "system"]
    if not said:
        return others
    if not others or others[0].role != "user":
        return [Message("user", said), *others]
    return [Message("user", f"{said}\n\n{others[0].content}"), *others[1:]]


def _of_parts(parts: Iterable[Any]) -> tuple[str, str]:
    """The text of a content in parts, and the thoughts among them.

    >>> _of_parts([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"text": "a"}, "b"])
    ('ab', 'Hm.')
    """
    text, thought = "", ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            inner = part.get("thinking") or part.get("reasoning")
            if isinstance(inner, list):
                thought += _of_parts(inner)[0]
            elif isinstance(inner, str):
                thought += inner
            elif isinstance(part.get("text"), str):
                text += part["text"]
    return text, thought


def _counted(reply: Json) -> Tokens | None:
    """None if the endpoint does not count."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt, generated = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    return None if not prompt or generated is None else Tokens(prompt=prompt, generated=generated)


def _count(given: Json) -> int | None:
    """None for what is no count of tokens that a request can have."""
    return given if type(given) is int and 0 <= given <= _MAX_TOKENS else None


def _estimated(messages: Sequence[Message], written: int) -> Tokens:
    """Of so many characters written."""
    read = sum(len(message.content) for message in messages)
    return Tokens(prompt=-(-read // _CHARS_PER_TOKEN), generated=-(-written // _CHARS_PER_TOKEN), estimated=True)


def _status_of(error: Json) -> int:
    """Of an error in an answer with the status 200: 500 if it names none that we know.

    >>> [_status_of(each) for each in ({"code": 429}, {"code": "invalid_api_key"}, {"code": "9" * 5000}, "odd")]
    [429, 401, 500, 500]
    """
    code = (error.get("code") or error.get("status")) if isinstance(error, dict) else None
    status = int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else _STATUS_OF_CODE.get(str(code), 0)
    return status if 400 <= status < 600 else 500


def _given_up(error: EngineError, broken: int, lost: Tokens) -> EngineError:
    tokens = f"{lost.prompt:,} tokens of prompts and {lost.generated:,} generated"
    estimated = ", as estimated" if lost.estimated else ""
    given_up = EngineError(f"{error}; {numbered(broken, 'answer')} broke off, for {tokens}{estimated}")
    given_up.broken_answers = broken
    return given_up


def _is_put_off(reply: Json) -> bool:
    """Whether an answer with the status 200 is an error that came before any answer.

    >>> [_is_put_off({"error": {"code": code}}) for code in (401, 429, 503, 502)], _is_put_off({"choices": []})
    ([True, True, True, False], False)
    """
    error = reply.get("error") if isinstance(reply, dict) else None
    return bool(error) and (_status_of(error) < 500 or _status_of(error) == HTTPStatus.SERVICE_UNAVAILABLE)


def _written(reply: Json, body: bytes) -> int:
    """The characters that an endpoint wrote in an answer that is none, or not whole."""
    if reply is None and is_streamed(body):
        return body.count(b"data:") * _CHARS_PER_TOKEN  # about a token each
    if reply is None:
        return len(body) if body.lstrip().startswith(b"{") else 0
    try:
        text, thought, _ = msgspec.convert(reply, _Reply).choices[0].message.read()
    except (msgspec.ValidationError, IndexError):
        return 0
    return len(text + thought)


def _code_of(decoded: Json) -> str:
    error = decoded.get("error") if isinstance(decoded, dict) else None
    return str(error.get("code") or "") if isinstance(error, dict) else ""


def _reason_of(decoded: Json, text: str) -> str:
    """The message of an error body in one of the usual forms, otherwise the body.

    >>> _reason_of({"error": {"message": "no"}}, ""), _reason_of({"detail": [{"msg": "no"}]}, "")
    ('no', '[{"msg":"no"}]')
    """
    found = decoded
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    if found is None:
        return text
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
