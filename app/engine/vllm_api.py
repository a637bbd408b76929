"""vLLM's HTTP API as a client sees it: a request, its answer as a value or an error that says whose fault."""

import re
from typing import Any

import httpx
import msgspec

from app.errors import EngineError, EngineRefusalError

_NOT_FINITE = re.compile(r"not finite|out of range float", re.I)  # JSON has no NaN: vLLM answers 400
_PASSING = {408, 425, 429}  # refusals that are over in a while


class ReplicaError(EngineError):
    """The server is at fault, not the request: another may answer. `code` is its HTTP status, 0 if none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UnreachableError(ReplicaError):
    """No connection, so nothing was sent."""


class NonsenseError(ReplicaError):
    """It answers, but not as vLLM does."""


class NotFiniteError(ReplicaError):
    """The weights that were asked, or what weights like that left in the server's memory, give NaN or infinity."""


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class Choice(msgspec.Struct):
    finish_reason: str
    logprobs: _Logprobs
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Answer(msgspec.Struct):
    choices: list[Choice]


class Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    task: str = "generate"  # the embedded server adds it; vLLM leaves it out


class Models(msgspec.Struct):
    data: list[Model]


class Version(msgspec.Struct):
    version: str


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class Embeddings(msgspec.Struct):
    data: list[_Embedding]


def open_client(at_once: int, timeout: float) -> httpx.AsyncClient:
    # Idle connections are dropped before the server drops them (uvicorn: 5 s), so no request meets a closed one.
    limits = httpx.Limits(max_connections=at_once + 8, max_keepalive_connections=at_once, keepalive_expiry=2)
    return httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=5), limits=limits, trust_env=False)


async def send(http: httpx.AsyncClient, method: str, url: str, kind: Any, body: Any = None) -> Any:
    """The answer as `kind` (None: as text).

    Raises ReplicaError where the server is at fault, EngineRefusalError where the request is, and EngineError
    where the server asks to be left alone for a while.
    """
    content = None if body is None else msgspec.json.encode(body)
    try:
        reply = await http.request(method, url, content=content, headers={"Content-Type": "application/json"})
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnreachableError(
            f"the engine at {url} is unreachable ({error or 'timeout'}): start it, or correct ENGINE_URLS."
        ) from error
    except httpx.HTTPError as error:
        raise ReplicaError(
            f"the engine at {url} broke off ({type(error).__name__} {error}): look into its log, then try again."
        ) from error
    if reply.status_code != httpx.codes.OK:
        raise _refusal(url, reply)
    if kind is None:
        return reply.text
    try:
        return msgspec.json.decode(reply.content, type=kind)
    except msgspec.DecodeError as error:
        raise NonsenseError(
            f"{url} does not answer as vLLM does ({error}): does ENGINE_URLS name a vLLM?"
        ) from error


def _refusal(url: str, reply: httpx.Response) -> EngineError:
    told, code = f"the engine at {url} refused with {reply.status_code}: {_reason(reply)}", reply.status_code
    if code in _PASSING:
        return EngineError(told)
    if _NOT_FINITE.search(told):
        return NotFiniteError(told, code)
    return EngineRefusalError(told, code) if reply.is_client_error else ReplicaError(told, code)


def _reason(reply: httpx.Response) -> str:
    """The message of vLLM's error body; otherwise the start of whatever came."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:300]
