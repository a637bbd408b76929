"""vLLM's HTTP API, as far as the embedded engine supports it; anything else is refused. Bodies, names and text
resolved, abandoned generations cancelled, whole and streamed responses, routes and status codes.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec
import numpy as np
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.response import Stream
from prometheus_client import CONTENT_TYPE_LATEST

from app.base.errors import AppError, ConflictError, EngineError, InvalidError, NotFoundError
from app.engine.protocol import Sampling
from app.engine.tokenizer import ChatTokenizer
from app.model_server.embeddings import EmbeddingModel
from app.model_server.generation import Generation, GenerationChunk, StopStrings
from app.model_server.lora import BASE, AdapterSet
from app.model_server.scheduler import EngineMetrics, Scheduler

_ACCEPTED: dict[str, tuple[Any, ...]] = {  # values of fields of which only "off" is supported
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "prompt_logprobs": (None,),
    "logprobs": (None, 0),
}

BASE_NAME = "base"
_REPLACEMENT = "\ufffd"  # decodes a character whose last bytes are still missing
T = TypeVar("T")
Http = Request[Any, Any, State]
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 409: "ConflictError", 503: "ServiceUnavailableError"}
_CLIENT_GONE = 499


class ParameterError(InvalidError):
    """One field of the request is invalid."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True):
    context: int  # tokens of the model
    cache: int  # tokens that the KV cache holds
    vocabulary: int

    @property
    def longest(self) -> int:
        """The longest sequence that can be served."""
        return min(self.context, self.cache)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str = "base"
    prompt: list[int] | str
    max_tokens: int | None = 16
    temperature: float | None = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  # 0: of the sampled tokens only
    return_token_ids: bool | None = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    stop: list[str] | str | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = None

    def sampling(self, prompt_tokens: int, limits: TokenLimits) -> Sampling:
        """Raises ParameterError if a value is out of range or not supported."""
        for name, accepted in _ACCEPTED.items():
            if getattr(self, name) not in accepted:
                raise ParameterError(
                    f"{name}={getattr(self, name)} is not supported by the embedded engine.", name
                )
        temperature = 1.0 if self.temperature is None else self.temperature
        if not 0 <= temperature <= 100:
            raise ParameterError(f"temperature must be between 0 and 100, not {temperature}.", "temperature")
        self._check_tokens(limits.vocabulary)
        room = limits.longest - prompt_tokens
        max_tokens = room if self.max_tokens is None else self.max_tokens
        if max_tokens < 1 and room >= 1:
            raise ParameterError(f"max_tokens must be at least 1, not {max_tokens}.", "max_tokens")
        if max_tokens > room or room < 1:
            raise _too_long(prompt_tokens, max_tokens, limits)
        return Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop_strings=self._stop_strings(),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
        )

    def _stop_strings(self) -> tuple[str, ...]:
        texts = [self.stop] if isinstance(self.stop, str) and self.stop else list(self.stop or ())
        if not all(texts):
            raise ParameterError("stop cannot contain an empty string.", "stop")
        return tuple(texts)

    def _check_tokens(self, vocabulary: int) -> None:
        for name in ("stop_token_ids", "allowed_token_ids"):
            if not all(0 <= token < vocabulary for token in getattr(self, name) or ()):
                raise ParameterError(f"{name} must lie between 0 and {vocabulary - 1}.", name)
        if self.allowed_token_ids == []:
            raise ParameterError("allowed_token_ids must hold at least one token.", "allowed_token_ids")


def _too_long(prompt_tokens: int, max_tokens: int, limits: TokenLimits) -> ParameterError:
    asked = f"the prompt has {prompt_tokens} and max_tokens asks for {max_tokens} more"
    remedy = "shorten the prompt or ask for fewer"
    if limits.cache < limits.context:
        return ParameterError(
            f"The KV cache holds {limits.cache} tokens, but {asked}: "
            f"raise SAGE_ENGINE_KV_MB (--kv-mb), or {remedy}.",
            "prompt",
        )
    return ParameterError(
        f"This model's maximum context length is {limits.context} tokens, but {asked}: {remedy}.", "prompt"
    )


class LoadAdapterRequest(msgspec.Struct, frozen=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, frozen=True):
    lora_name: str


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float"] = "float"
    user: str | None = None


class Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorInfo


class LoadedAdapter(msgspec.Struct, frozen=True):
    number: int
    path: Path


class PreparedRequest(msgspec.Struct, frozen=True):
    """A validated request."""

    model: str
    prompt: list[int]
    adapter: int
    sampling: Sampling
    stops: frozenset[int]


class EngineService:
    def __init__(
        self, tokenizer: ChatTokenizer, adapters: AdapterSet, scheduler: Scheduler, max_adapters: int
    ) -> None:
        self.tokenizer, self.scheduler = tokenizer, scheduler
        self._limits = TokenLimits(
            context=min(tokenizer.max_length, scheduler.max_length),
            cache=scheduler.memory.tokens,
            vocabulary=tokenizer.vocab_size,
        )
        self._adapters, self._max = adapters, max_adapters
        self.loaded: dict[str, LoadedAdapter] = {}
        self._numbers = BASE
        self._lock = asyncio.Lock()

    @property
    def max_length(self) -> int:
        """The longest sequence, prompt included."""
        return self._limits.longest

    def prepare(self, request: CompletionRequest) -> PreparedRequest:
        """Raises NotFoundError for an unknown model, ParameterError for an invalid request."""
        adapter = self._adapter(request.model)
        text = request.prompt
        prompt = self.tokenizer.encode(text) if isinstance(text, str) else text
        size = self._limits.vocabulary
        if not prompt:
            raise ParameterError("prompt must hold at least one token.", "prompt")
        if not 0 <= min(prompt) <= max(prompt) < size:
            raise ParameterError(f"prompt holds token ids out of vocabulary: they must be below {size}.", "prompt")
        sampling = request.sampling(len(prompt), self._limits)
        eos = () if request.ignore_eos else self.tokenizer.eos_ids
        return PreparedRequest(
            request.model, prompt, adapter, sampling, frozenset((*sampling.stop_token_ids, *eos))
        )

    async def generate(self, prepared: PreparedRequest, *, stream: bool) -> AsyncIterator[GenerationChunk]:
        """Yield chunks until one has a finish reason. Leaving early cancels the generation.

        Raises NotFoundError if the adapter was unloaded since the request was prepared: the base would answer.
        """
        if not self.scheduler.alive:
            raise EngineError("the engine has stopped after an error: restart it, and check its log.")
        if self._adapter(prepared.model) != prepared.adapter:
            raise _unknown(prepared.model)
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[GenerationChunk]()
        generation = Generation(
            np.asarray(prepared.prompt, np.int32),
            adapter=prepared.adapter,
            sampling=prepared.sampling,
            stops=prepared.stops,
            stop_strings=StopStrings(self.tokenizer, texts) if (texts := prepared.sampling.stop_strings) else None,
            report=lambda chunk: _deliver(loop, chunks, chunk),
            stream=stream,
        )
        self.scheduler.submit(generation)
        finished = False
        try:
            while not finished:
                chunk = await chunks.get()
                finished = bool(chunk.finish)
                if chunk.finish == "error":
                    raise EngineError("the model gave values that are not finite: unload this adapter.")
                yield chunk
        finally:
            if not finished:
                generation.cancel()
                self.scheduler.wake()

    async def load(self, request: LoadAdapterRequest) -> None:
        """The adapter is usable when this returns. Raises what `AdapterSet.read` raises."""
        name, path = request.lora_name, Path(request.lora_path)
        if not name or not request.lora_path:
            raise ParameterError("Both 'lora_name' and 'lora_path' must be provided.", "lora_name")
        if request.load_inplace:
            raise InvalidError(
                "load_inplace is not supported: load the new weights under a new name.", "load_inplace"
            )
        async with self._lock:
            if name in self.loaded or name == BASE_NAME:
                raise ParameterError(f"The lora adapter '{name}' has already been loaded.", "lora_name")
            deltas = await asyncio.to_thread(self._adapters.read, path)  # first: a damaged one needs no room
            if len(self.loaded) >= self._max:
                raise ConflictError(f"{self._max} adapters are loaded, which is --max-loras: unload one first.")
            self._numbers += 1
            installed, loop = asyncio.Event(), asyncio.get_running_loop()

            def announce() -> None:
                loop.call_soon_threadsafe(installed.set)

            self.scheduler.add_adapter(self._numbers, deltas, announce)
            await installed.wait()
            self.loaded[name] = LoadedAdapter(self._numbers, path)

    async def unload(self, name: str) -> None:
        """Running generations finish with the adapter; new ones are refused."""
        async with self._lock:
            if name not in self.loaded:
                raise NotFoundError(f"The lora adapter '{name}' cannot be found.")
            self.scheduler.remove_adapter(self.loaded.pop(name).number)

    def _adapter(self, model: str) -> int:
        if model == BASE_NAME:
            return BASE
        if model not in self.loaded:
            raise _unknown(model)
        return self.loaded[model].number


def _unknown(model: str) -> NotFoundError:
    return NotFoundError(f"The model `{model}` does not exist.")


def _deliver(
    loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[GenerationChunk], chunk: GenerationChunk
) -> None:
    """Called by the scheduler's thread. Nothing waits on a closed loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)


class CompletionWriter:
    """Writes one response. Feed it every chunk, in order."""

    def __init__(self, tokenizer: ChatTokenizer, request: CompletionRequest, prepared: PreparedRequest) -> None:
        self._tokenizer, self._request, self._prepared = tokenizer, request, prepared
        self._id, self._created = f"cmpl-{uuid4().hex}", int(time.time())
        self._ids: list[int] = []
        self._text = ""

    def response(self, chunk: GenerationChunk) -> bytes:
        choice = self._choice(chunk)
        return self._body([choice], self._usage())

    def event(self, chunk: GenerationChunk) -> bytes:
        """One server-sent event."""
        return b"data: " + self._body([self._choice(chunk)], None) + b"\n\n"

    def end_events(self) -> bytes:
        options = self._request.stream_options
        usage = b"data: " + self._body([], self._usage()) + b"\n\n" if options and options.include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _body(self, choices: list[CompletionChoice], usage: Usage | None) -> bytes:
        return msgspec.json.encode(
            CompletionResponse(
                id=self._id, created=self._created, model=self._prepared.model, choices=choices, usage=usage
            )
        )

    def _choice(self, chunk: GenerationChunk) -> CompletionChoice:
        first, wants_ids = not self._ids, self._request.return_token_ids
        self._ids.extend(chunk.ids)
        before = self._text
        self._text = self._visible(chunk)
        return CompletionChoice(
            text=self._text[len(before) :],
            logprobs=self._logprobs(chunk, len(before)) if self._request.logprobs is not None else None,
            finish_reason=chunk.finish or None,
            stop_reason=self._stop_reason(chunk),
            token_ids=list(chunk.ids) if wants_ids else None,
            prompt_token_ids=self._prepared.prompt if wants_ids and first else None,
        )

    def _visible(self, chunk: GenerationChunk) -> str:
        """The text so far, without what stopped it or may be the beginning of that, and incomplete characters."""
        ids = self._ids[:-1] if self._ids and self._ids[-1] in self._prepared.stops else self._ids
        text: str = self._tokenizer.tokenizer.decode(ids, skip_special_tokens=self._request.skip_special_tokens)
        if chunk.stop_string:  # absent from the text if it is a special token that is left out
            return text.rpartition(chunk.stop_string)[0] if chunk.stop_string in text else text
        if chunk.finish:
            return text
        held = max(map(len, self._prepared.sampling.stop_strings), default=1) - 1
        return text.rstrip(_REPLACEMENT)[: -held or None]

    def _stop_reason(self, chunk: GenerationChunk) -> int | str | None:
        """vLLM reports the token only if the request named it."""
        if chunk.stop_string:
            return chunk.stop_string
        return chunk.stop_token if chunk.stop_token in self._prepared.sampling.stop_token_ids else None

    def _logprobs(self, chunk: GenerationChunk, offset: int) -> Logprobs:
        texts = [self._tokenizer.decode([token]) for token in chunk.ids]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        top = [{text: value} for text, value in zip(texts, chunk.logprobs, strict=True)]
        return Logprobs(texts, list(chunk.logprobs), top, offsets)

    def _usage(self) -> Usage:
        prompt, generated = len(self._prepared.prompt), len(self._ids)
        return Usage(prompt, generated, prompt + generated)


def create_app(service: EngineService, embeddings: EmbeddingModel | None, metrics: EngineMetrics) -> Litestar:
    """The app owns its parts: on shutdown it stops the scheduler and closes the embedding model."""

    async def close() -> None:
        await asyncio.to_thread(service.scheduler.stop)
        if embeddings:
            embeddings.close()

    return Litestar(
        [completions, models, load_adapter, unload_adapter, embed, health, show_metrics, show_version],
        state=State(
            {"service": service, "embeddings": embeddings, "metrics": metrics, "started": int(time.time())}
        ),
        on_shutdown=[close],
        openapi_config=None,
        logging_config=None,
        exception_handlers={AppError: _refuse},
    )


@post("/v1/completions", status_code=200)
async def completions(request: Http) -> Response[Any]:
    body, service = await _body(request, CompletionRequest), _service(request)
    prepared = service.prepare(body)
    writer = CompletionWriter(service.tokenizer, body, prepared)
    if body.stream:
        return Stream(_events(service, prepared, writer), media_type="text/event-stream")
    chunk = await _while_connected(request, _single_chunk(service, prepared))
    if chunk is None:
        return Response(b"", status_code=_CLIENT_GONE)
    return _json(writer.response(chunk))


@get("/v1/models")
async def models(request: Http) -> Response[bytes]:
    service, embeddings = _service(request), request.app.state.embeddings
    card = {"object": "model", "created": request.app.state.started, "owned_by": "sage"}
    base = {
        "id": BASE_NAME,
        **card,
        "root": BASE_NAME,
        "parent": None,
        "max_model_len": service.max_length,
    }
    adapters = [
        {"id": name, **card, "root": str(loaded.path), "parent": BASE_NAME, "max_model_len": None}
        for name, loaded in service.loaded.items()
    ]
    embedders = [{"id": embeddings.name, **card, "parent": None, "task": "embed"}] if embeddings else []
    return _json(msgspec.json.encode({"object": "list", "data": [base, *adapters, *embedders]}))


@post("/v1/load_lora_adapter", status_code=200)
async def load_adapter(request: Http) -> str:
    body = await _body(request, LoadAdapterRequest)
    await _service(request).load(body)
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


@post("/v1/unload_lora_adapter", status_code=200)
async def unload_adapter(request: Http) -> str:
    body = await _body(request, UnloadAdapterRequest)
    await _service(request).unload(body.lora_name)
    return f"Success: LoRA adapter '{body.lora_name}' removed successfully."


@post("/v1/embeddings", status_code=200)
async def embed(request: Http) -> Response[bytes]:
    body = await _body(request, EmbeddingRequest)
    embeddings: EmbeddingModel | None = request.app.state.embeddings
    if embeddings is None or body.model not in (None, embeddings.name):
        raise NotFoundError(f"The model `{body.model}` does not exist.")
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        raise InvalidError("input must hold at least one text.")
    vectors, tokens = await embeddings.embed(texts)
    rows = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json(msgspec.json.encode({"object": "list", "model": embeddings.name, "data": rows, "usage": usage}))


@get("/health")
async def health(request: Http) -> Response[bytes]:
    return Response(b"", status_code=200 if _service(request).scheduler.alive else 503)


@get("/metrics")
async def show_metrics(request: Http) -> Response[bytes]:
    metrics: EngineMetrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


@get("/version")
async def show_version() -> dict[str, str]:
    return {"version": version("sage-server"), "server": "embedded server"}


async def _single_chunk(service: EngineService, prepared: PreparedRequest) -> GenerationChunk:
    """The only chunk of a generation that is not streamed."""
    async for chunk in service.generate(prepared, stream=False):
        return chunk
    raise AssertionError("a generation reports at least one chunk")


async def _events(
    service: EngineService, prepared: PreparedRequest, writer: CompletionWriter
) -> AsyncIterator[bytes]:
    try:
        async for chunk in service.generate(prepared, stream=True):
            yield writer.event(chunk)
    except AppError as error:  # the status line has already been sent
        yield b"data: " + msgspec.json.encode(_error(error)) + b"\n\n"
    yield writer.end_events()


async def _while_connected(request: Http, work: Any) -> Any:
    """The result of `work`; None if the client disconnects first, which cancels the work."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body is read, so only a disconnect can follow
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        gone.cancel()
        working.cancel()


async def _body(request: Http, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidError(f"the request is invalid: {error}") from error


def _service(request: Http) -> EngineService:
    service: EngineService = request.app.state.service
    return service


def _json(body: bytes) -> Response[bytes]:
    return Response(body, media_type="application/json")


def _error(error: AppError) -> ErrorResponse:
    kind = _TYPES.get(error.status, "InternalServerError")
    return ErrorResponse(ErrorInfo(str(error), kind, getattr(error, "param", None), error.status))


def _refuse(_: Http, error: AppError) -> Response[bytes]:
    return Response(msgspec.json.encode(_error(error)), status_code=error.status, media_type="application/json")
