"""The HTTP edge: vLLM's routes, status codes and error bodies."""

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

from app.engine.embedded.embeddings import Embeddings
from app.engine.embedded.generation import Progress
from app.engine.embedded.prometheus import Metrics
from app.engine.embedded.response import Writer
from app.engine.embedded.schemas import (
    CompletionRequest,
    EmbeddingRequest,
    ErrorAnswer,
    ErrorInfo,
    LoadAdapter,
    UnloadAdapter,
)
from app.engine.embedded.service import BASE_NAME, Prepared, Service
from app.errors import AppError, InvalidError, NotFoundError

T = TypeVar("T")
Http = Request[Any, Any, State]
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 409: "ConflictError", 503: "ServiceUnavailableError"}
_CLIENT_GONE = 499


def create_app(service: Service, embeddings: Embeddings | None, metrics: Metrics) -> Litestar:
    """The app owns what it is given: on shutdown it stops the scheduler and closes the embeddings."""

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
    writer = Writer(service.tokenizer, body, prepared)
    if body.stream:
        return Stream(_events(service, prepared, writer), media_type="text/event-stream")
    progress = await _while_connected(request, _only(service, prepared))
    if progress is None:
        return Response(b"", status_code=_CLIENT_GONE)
    return _json(writer.answer(progress))


@get("/v1/models")
async def models(request: Http) -> Response[bytes]:
    service, embeddings = _service(request), request.app.state.embeddings
    card = {"object": "model", "created": request.app.state.started, "owned_by": "sage"}
    base = {
        "id": BASE_NAME,
        **card,
        "root": BASE_NAME,
        "parent": None,
        "max_model_len": service.tokenizer.max_length,
    }
    adapters = [
        {"id": name, **card, "root": str(loaded.path), "parent": BASE_NAME, "max_model_len": None}
        for name, loaded in service.loaded.items()
    ]
    embedders = [{"id": embeddings.name, **card, "parent": None, "task": "embed"}] if embeddings else []
    return _json(msgspec.json.encode({"object": "list", "data": [base, *adapters, *embedders]}))


@post("/v1/load_lora_adapter", status_code=200)
async def load_adapter(request: Http) -> str:
    body = await _body(request, LoadAdapter)
    await _service(request).load(body)
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


@post("/v1/unload_lora_adapter", status_code=200)
async def unload_adapter(request: Http) -> str:
    body = await _body(request, UnloadAdapter)
    await _service(request).unload(body.lora_name)
    return f"Success: LoRA adapter '{body.lora_name}' removed successfully."


@post("/v1/embeddings", status_code=200)
async def embed(request: Http) -> Response[bytes]:
    body = await _body(request, EmbeddingRequest)
    embeddings: Embeddings | None = request.app.state.embeddings
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
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


@get("/version")
async def show_version() -> dict[str, str]:
    return {"version": version("sage-server")}


async def _only(service: Service, prepared: Prepared) -> Progress:
    """The one progress of a generation that is not streamed."""
    async for progress in service.generate(prepared, stream=False):
        return progress
    raise AssertionError("a generation reports at least once")


async def _events(service: Service, prepared: Prepared, writer: Writer) -> AsyncIterator[bytes]:
    try:
        async for progress in service.generate(prepared, stream=True):
            yield writer.piece(progress)
    except AppError as error:  # the status line has gone out long ago
        yield b"data: " + msgspec.json.encode(_error(error)) + b"\n\n"
    yield writer.end()


async def _while_connected(request: Http, work: Any) -> Any:
    """What `work` gives; None where the client closes the connection first, and the work is cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body is read, so all that can come is a disconnect
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
        raise InvalidError(f"the request does not fit: {error}") from error


def _service(request: Http) -> Service:
    service: Service = request.app.state.service
    return service


def _json(body: bytes) -> Response[bytes]:
    return Response(body, media_type="application/json")


def _error(error: AppError) -> ErrorAnswer:
    kind = _TYPES.get(error.status, "InternalServerError")
    return ErrorAnswer(ErrorInfo(str(error), kind, getattr(error, "param", None), error.status))


def _refuse(_: Http, error: AppError) -> Response[bytes]:
    return Response(msgspec.json.encode(_error(error)), status_code=error.status, media_type="application/json")
