"""vLLM's HTTP API: typed replies, separate errors for faults of the server and of the request, the requests and
replies of completions, and embeddings.
"""

import re
from collections.abc import Sequence
from typing import Any, Self

import httpx
import msgspec
import numpy as np

from app.base.errors import EngineError, EngineRefusalError
from app.base.untrusted_http import HttpTransport
from app.engine.protocol import Completion, Sampling, Vector

_NOT_FINITE = re.compile(r"not finite|out of range float", re.I)  # JSON has no NaN: vLLM answers 400
_TEMPORARY = {408, 425, 429}
_PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Always sent: vLLM would otherwise take these from the model's generation_config.json."""

_AT_ONCE = 64  # requests for embeddings
_TIMEOUT = 600.0  # seconds of one


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


def build_request(prompt: list[int], model: str, sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": 0,  # of the sampled token only
        "return_token_ids": True,
        **_PLAIN,
    }
    if sampling.stop_strings:
        body["stop"] = list(sampling.stop_strings)
    if sampling.allowed_token_ids:
        body["allowed_token_ids"] = list(sampling.allowed_token_ids)
    return body


def parse_completion(answer: CompletionReply, prompt: list[int], vocabulary: int, url: str) -> Completion:
    """Raises InvalidResponseError for a reply to another prompt, or an incomplete one."""
    if len(answer.choices) != 1:
        raise InvalidResponseError(f"{url} returned {len(answer.choices)} choices for one prompt.")
    choice = answer.choices[0]
    ids, logprobs = tuple(_ids(choice, prompt, url)), tuple(choice.logprobs.token_logprobs)
    if len(ids) != len(logprobs):
        raise InvalidResponseError(f"{url} returned {len(ids)} tokens but {len(logprobs)} logprobs.")
    if not all(0 <= token < vocabulary for token in ids):
        raise InvalidResponseError(
            f"{url} returned token ids outside the base model's vocabulary: does it serve another model?"
        )
    if choice.finish_reason not in {"stop", "length"}:
        raise ReplicaError(f"{url} ended the generation early ({choice.finish_reason}): try again.")
    return Completion(ids, logprobs, choice.finish_reason)


def _ids(choice: ReplyChoice, prompt: list[int], url: str) -> list[int]:
    if choice.token_ids is None or choice.prompt_token_ids is None:
        raise InvalidResponseError(
            f"{url} returned no token ids: it must support return_token_ids, as vLLM 0.10.2 and later do."
        )
    if choice.prompt_token_ids != prompt:
        raise InvalidResponseError(f"{url} answered another prompt than the one sent: restart it.")
    return choice.token_ids


class HttpEmbedder:
    """Embeds with one model. `open` asks the server for the model's name if none is given."""

    def __init__(self, url: str, model: str = "") -> None:
        self.url, self._model = url.rstrip("/"), model
        self._http = open_client(_AT_ONCE, _TIMEOUT)

    @classmethod
    async def open(cls, url: str, model: str = "") -> Self:
        """Raises EngineError if the server is unreachable, or serves several models and none was named."""
        embedder = cls(url, model)
        try:
            return await embedder.resolve_model()
        except EngineError:
            await embedder.close()
            raise

    async def resolve_model(self) -> Self:
        """Look up the model's name. Raises EngineError as `open` does; it may then be tried again."""
        self._model = self._model or await self._only_model()
        return self

    @property
    def model(self) -> str:
        return self._model

    async def close(self) -> None:
        await self._http.aclose()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        answer: EmbeddingReply = await send(self._http, "POST", f"{self.url}/v1/embeddings", EmbeddingReply, body)
        rows = {row.index: row.embedding for row in answer.data}
        if sorted(rows) != list(range(len(texts))):
            raise EngineError(f"{self.url} returned {len(answer.data)} vectors for {len(texts)} texts.")
        return [_unit(rows[position]) for position in range(len(texts))]

    async def _only_model(self) -> str:
        answer: ModelList = await send(self._http, "GET", f"{self.url}/v1/models", ModelList)
        models = answer.data
        candidates = [model.id for model in models if model.task == "embed"] or [model.id for model in models]
        if len(candidates) != 1:
            raise EngineError(f"{self.url} serves {', '.join(candidates) or 'nothing'}: name the embedding model.")
        return candidates[0]


def _unit(values: list[float]) -> Vector:
    vector = np.asarray(values, np.float32)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0:
        raise EngineError("the embedding model returned a zero or non-finite vector.")
    return np.asarray(vector / length, np.float32)
