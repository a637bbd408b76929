"""vLLM's HTTP routes, status codes and error bodies."""

import asyncio
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.response import Stream
from prometheus_client import CONTENT_TYPE_LATEST

from app.errors import AppError, InvalidError, NotFoundError
from app.model_server.embeddings import EmbeddingModel
from app.model_server.generation import GenerationChunk
from app.model_server.prometheus import EngineMetrics
from app.model_server.response import CompletionWriter
from app.model_server.schemas import (
    CompletionRequest,
    EmbeddingRequest,
    ErrorInfo,
    ErrorResponse,
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from app.model_server.service import BASE_NAME, EngineService, PreparedRequest

T = TypeVar("T")
Http = Request[Any, Any, State]
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 409: "ConflictError", 503: "ServiceUnavailableError"}
_CLIENT_GONE = 499


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
