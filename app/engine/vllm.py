"""A client for vLLM's HTTP API: typed replies, and separate errors for faults of the server and of the request."""

import re
from typing import Any

import httpx
import msgspec

from app.errors import EngineError, EngineRefusalError
from app.untrusted.http_transport import HttpTransport

_NOT_FINITE = re.compile(r"not finite|out of range float", re.I)  # JSON has no NaN: vLLM answers 400
_TEMPORARY = {408, 425, 429}


class ReplicaError(EngineError):
    """The server is at fault, not the request: another may succeed. `code` is its HTTP status, 0 if none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UnreachableError(ReplicaError):
    """The connection failed, so nothing was sent."""


class BrokenOffError(ReplicaError):
    """The connection broke before the answer was read: the server may have done what was asked."""


class InvalidResponseError(ReplicaError):
    """The server answers, but not as vLLM does."""


class NonFiniteError(ReplicaError):
    """The weights, or NaN that earlier weights left in the server's memory, give non-finite values."""


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class ReplyChoice(msgspec.Struct):
    finish_reason: str
    logprobs: _Logprobs
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionReply(msgspec.Struct):
    choices: list[ReplyChoice]


class ModelInfo(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    task: str = "generate"  # an addition of the embedded server; vLLM leaves it out


class ModelList(msgspec.Struct):
    data: list[ModelInfo]


class VersionReply(msgspec.Struct):
    version: str
    server: str = "vLLM"  # an addition of the embedded server


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class EmbeddingReply(msgspec.Struct):
    data: list[_Embedding]


def open_client(max_in_flight: int, timeout: float) -> httpx.AsyncClient:
    # Idle connections are dropped before the server drops them (uvicorn: 5 s), so no request meets a closed one.
    limits = httpx.Limits(
        max_connections=max_in_flight + 8, max_keepalive_connections=max_in_flight, keepalive_expiry=2
    )
    return httpx.AsyncClient(
        timeout=httpx.Timeout(timeout, connect=5), transport=HttpTransport(limits), trust_env=False
    )


async def send(
    http: httpx.AsyncClient, method: str, url: str, kind: Any, body: Any = None, setting: str = "ENGINE_URLS"
) -> Any:
    """The reply decoded as `kind` (None: as text). `setting` names the server.

    Raises ReplicaError if the server is at fault, EngineRefusalError if the request is, and EngineError if the
    server asks to retry later.
    """
    content = None if body is None else msgspec.json.encode(body)
    try:
        reply = await http.request(method, url, content=content, headers={"Content-Type": "application/json"})
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnreachableError(
            f"the engine at {url} is unreachable ({error or 'timeout'}): start it, or correct {setting}."
        ) from error
    except httpx.HTTPError as error:
        raise (ReplicaError if isinstance(error, httpx.TimeoutException) else BrokenOffError)(
            f"the engine at {url} broke off ({type(error).__name__} {error}): check its log, then try again."
        ) from error
    if reply.status_code != httpx.codes.OK:
        raise _refusal(url, reply)
    if kind is None:
        return reply.text
    try:
        return msgspec.json.decode(reply.content, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidResponseError(
            f"{url} does not answer as vLLM does ({error}): does {setting} name a vLLM server?"
        ) from error


def _refusal(url: str, reply: httpx.Response) -> EngineError:
    message, code = f"the engine at {url} refused with {reply.status_code}: {_reason(reply)}", reply.status_code
    if code in _TEMPORARY:
        return EngineError(message)
    if _NOT_FINITE.search(message):
        return NonFiniteError(message, code)
    return EngineRefusalError(message, code) if reply.is_client_error else ReplicaError(message, code)


def _reason(reply: httpx.Response) -> str:
    """The message of vLLM's error body, or the start of a body without one."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:300]
