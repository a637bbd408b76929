"""Engines and embedders behind vLLM's HTTP API: a vLLM server, or the embedded one."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec
import numpy as np

from app.engine.protocol import Completion, Sampling, Vector
from app.errors import EngineError, EngineRefusalError

AT_ONCE = 64
_ATTEMPTS = 4  # of opening a connection, before anything was sent
_PAUSE = 0.25  # seconds, doubled each time
_TIMEOUT = httpx.Timeout(600, connect=5, pool=600)
_PASSING = {408, 425, 429}  # refusals that are over in a while
_PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent always: vLLM would otherwise take these from the model's generation_config.json."""


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    finish_reason: str
    token_ids: list[int]
    logprobs: _Logprobs


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _Model(msgspec.Struct):
    id: str
    task: str = "generate"  # the embedded server adds it; vLLM leaves it out


class _Models(msgspec.Struct):
    data: list[_Model]


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class HttpEngine:
    """Spreads requests over servers that hold the same model. Use it as an async context manager, or close it."""

    def __init__(self, urls: Sequence[str], *, at_once: int = AT_ONCE) -> None:
        if not urls:
            raise EngineError("no engine URL: set ENGINE_URLS, or leave it empty for the embedded one.")
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._running = dict.fromkeys(self.urls, 0)
        self._slots = asyncio.Semaphore(at_once)
        self._http = _open_client(at_once)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Cancelling the calling task closes the connection, and with it the generation."""
        body = {
            "model": model,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,  # of the sampled token alone
            "return_token_ids": True,
            **_PLAIN,
        }
        async with self._slots:
            return await self._complete(body)

    async def _complete(self, body: dict[str, Any]) -> Completion:
        for attempt in range(_ATTEMPTS):
            url = min(self.urls, key=self._running.__getitem__)
            self._running[url] += 1
            try:
                answer = await _send(self._http, "POST", f"{url}/v1/completions", _Answer, body)
                return _completion(url, answer)
            except _UnreachableError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_PAUSE * 2**attempt)
            finally:
                self._running[url] -= 1
        raise AssertionError("the last attempt returns or raises")

    async def load_adapter(self, name: str, path: Path) -> None:
        """All servers or none. A name stands for one set of weights for ever, so a server that has it is done."""
        loaded: list[str] = []
        try:
            for url in self.urls:
                if name not in await self._models(url):
                    loaded.append(url)
                    await self._load(url, name, path)
        except (EngineError, asyncio.CancelledError):
            await asyncio.shield(self._unload(name, loaded, strict=False))
            raise

    async def _load(self, url: str, name: str, path: Path) -> None:
        body = {"lora_name": name, "lora_path": str(path)}
        try:
            await _send(self._http, "POST", f"{url}/v1/load_lora_adapter", None, body)
        except EngineRefusalError:
            if name not in await self._models(url):  # else another process was faster
                raise

    async def unload_adapter(self, name: str) -> None:
        """Every server is asked, also when one of them fails; a server without the adapter is done."""
        await self._unload(name, self.urls, strict=True)

    async def _unload(self, name: str, urls: Sequence[str], *, strict: bool) -> None:
        failures: list[EngineError] = []
        for url in urls:
            try:
                if name in await self._models(url):
                    await _send(self._http, "POST", f"{url}/v1/unload_lora_adapter", None, {"lora_name": name})
            except EngineError as error:
                failures.append(error)
        if strict and failures:
            raise failures[0]

    async def models(self) -> list[str]:
        """What every server can generate with: "base" and the adapters that are loaded everywhere."""
        listed = [await self._models(url) for url in self.urls]
        return [name for name in listed[0] if all(name in names for names in listed)]

    async def loaded(self) -> list[str]:
        """What at least one server has loaded, "base" included, in the order of loading."""
        return list(dict.fromkeys([name for url in self.urls for name in await self._models(url)]))

    async def _models(self, url: str) -> list[str]:
        answer = await _send(self._http, "GET", f"{url}/v1/models", _Models)
        return [model.id for model in answer.data if model.task == "generate"]

    async def health(self) -> bool:
        """Do all servers answer?"""
        return all([await _alive(self._http, url) for url in self.urls])


class HttpEmbedder:
    """Vectors of one model. `open` asks the server for its name where none is given."""

    def __init__(self, url: str, model: str = "") -> None:
        self.url, self._model = url.rstrip("/"), model
        self._http = _open_client(AT_ONCE)

    @classmethod
    async def open(cls, url: str, model: str = "") -> Self:
        """Raises EngineError where the server is unreachable, or serves several models and none was named."""
        embedder = cls(url, model)
        try:
            return await embedder.named()
        except EngineError:
            await embedder.close()
            raise

    async def named(self) -> Self:
        """This one, once it knows its model's name. Raises EngineError as `open` does; then try again later."""
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
        answer = await _send(self._http, "POST", f"{self.url}/v1/embeddings", _Embeddings, body)
        rows = {row.index: row.embedding for row in answer.data}
        if sorted(rows) != list(range(len(texts))):
            raise EngineError(f"{self.url} gave {len(answer.data)} vectors for {len(texts)} texts.")
        return [_unit(rows[position]) for position in range(len(texts))]

    async def _only_model(self) -> str:
        answer: _Models = await _send(self._http, "GET", f"{self.url}/v1/models", _Models)
        models = answer.data
        candidates = [model.id for model in models if model.task == "embed"] or [model.id for model in models]
        if len(candidates) != 1:
            raise EngineError(f"{self.url} serves {', '.join(candidates) or 'nothing'}: name the embedding model.")
        return candidates[0]


class _UnreachableError(EngineError):
    """No connection, so nothing was sent, and sending it again is safe."""


def _open_client(at_once: int) -> httpx.AsyncClient:
    # Idle connections are dropped before the server drops them (uvicorn: 5 s), so no request meets a closed one.
    limits = httpx.Limits(max_connections=at_once + 8, max_keepalive_connections=at_once, keepalive_expiry=2)
    return httpx.AsyncClient(timeout=_TIMEOUT, limits=limits, trust_env=False)


async def _send(http: httpx.AsyncClient, method: str, url: str, kind: Any, body: Any = None) -> Any:
    """The answer as `kind` (None: not looked at). Raises EngineError on everything but a 200 that fits."""
    content = None if body is None else msgspec.json.encode(body)
    try:
        reply = await http.request(method, url, content=content, headers={"Content-Type": "application/json"})
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise _UnreachableError(
            f"the engine at {url} is unreachable ({error or 'timeout'}): start it, or correct ENGINE_URLS."
        ) from error
    except httpx.HTTPError as error:
        raise EngineError(
            f"the engine at {url} broke off ({type(error).__name__} {error}): look into its log, then try again."
        ) from error
    if reply.status_code != httpx.codes.OK:
        final = reply.is_client_error and reply.status_code not in _PASSING
        told = f"the engine at {url} refused with {reply.status_code}: {_reason(reply)}"
        raise EngineRefusalError(told, reply.status_code) if final else EngineError(told)
    if kind is None:
        return None
    try:
        return msgspec.json.decode(reply.content, type=kind)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"{url} does not answer as vLLM does ({error}): does ENGINE_URLS name a vLLM?"
        ) from error


def _reason(reply: httpx.Response) -> str:
    """The message of vLLM's error body; otherwise the start of whatever came."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:300]


def _completion(url: str, answer: _Answer) -> Completion:
    choice = answer.choices[0]
    ids, logprobs = tuple(choice.token_ids), tuple(choice.logprobs.token_logprobs)
    if len(ids) != len(logprobs):
        raise EngineError(f"{url} gave {len(ids)} tokens but {len(logprobs)} logprobs.")
    if choice.finish_reason not in {"stop", "length"}:
        raise EngineError(f"{url} ended the generation early ({choice.finish_reason}): try again.")
    return Completion(ids, logprobs, choice.finish_reason)


async def _alive(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health", timeout=5)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _unit(values: list[float]) -> Vector:
    vector = np.asarray(values, np.float32)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0:
        raise EngineError("the embedding model gave a vector without a direction.")
    return np.asarray(vector / length, np.float32)
