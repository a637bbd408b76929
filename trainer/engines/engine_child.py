"""`python -m trainer.engines.engine_child`: the embedded engine for one trainer, over an inherited socket."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import click
import torch

from app.base.errors import AppError, ModelError
from app.engine.protocol import Completion
from app.engine.tokenizer import ChatTokenizer
from app.model_server.api import CompletionRequest, EngineService, LoadAdapterRequest
from app.model_server.decoder import Decoder, load_model
from app.model_server.device import resolve_dtype
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import SWITCH_INTERVAL, EngineMetrics, Scheduler
from app.model_server.serve import resolve_device
from trainer.engines.embedded import (
    CancelRequest,
    EngineReply,
    EngineRequest,
    ErrorReply,
    LoadRequest,
    OkReply,
    ReadyReply,
    SampleReply,
    SampleRequest,
    UnloadRequest,
    read_request,
    write,
)


@click.command()
@click.option("--socket", "fd", required=True, type=int)
@click.option("--model", required=True, type=click.Path(path_type=Path))
@click.option("--device", required=True)
@click.option("--dtype", required=True)
@click.option("--rows", required=True, type=click.IntRange(1))
@click.option("--kv-mb", required=True, type=click.IntRange(1))
@click.option("--adapters", required=True, type=click.IntRange(1))
@click.option("--threads", required=True, type=click.IntRange(1))
def main(fd: int, threads: int, **options: Any) -> None:
    """Serve until the trainer closes its end of the socket."""
    torch.set_num_threads(threads)
    sys.setswitchinterval(SWITCH_INTERVAL)
    asyncio.run(_serve(socket.socket(fileno=fd), **options))


async def _serve(stream: socket.socket, **options: Any) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=stream)
    try:
        service = _start(writer, **options)
    except ModelError as error:
        write(writer, ErrorReply(0, str(error), error.status))
        writer.close()
        await writer.wait_closed()
        return
    write(writer, ReadyReply(0, service.max_length))
    try:
        await RequestHandler(service, writer).serve(reader)
    finally:
        service.scheduler.stop()


def _start(
    writer: asyncio.StreamWriter, *, model: Path, device: str, dtype: str, rows: int, kv_mb: int, adapters: int
) -> EngineService:
    """An engine whose death closes the socket, so that pending requests fail."""
    loop, tokenizer = asyncio.get_running_loop(), ChatTokenizer.load(model)
    device = resolve_device(device)
    loaded = load_model(model, device, resolve_dtype(dtype, device, model), kv_mb=kv_mb, adapters=adapters)
    decoder = Decoder(loaded, kv_mb)
    adapter_set = AdapterSet(decoder.model)

    def close() -> None:
        loop.call_soon_threadsafe(writer.close)

    scheduler = Scheduler(
        decoder, adapter_set, EngineMetrics(), on_death=close, max_rows=rows, pass_seconds=decoder.pass_seconds()
    )
    scheduler.start()
    return EngineService(tokenizer, adapter_set, scheduler, adapters)


class RequestHandler:
    """Sends one reply per request, except for cancelled ones."""

    def __init__(self, service: EngineService, writer: asyncio.StreamWriter) -> None:
        self._service, self._writer = service, writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve requests until the other end closes."""
        try:
            while True:
                self._begin(await read_request(reader))
        except (EOFError, ConnectionError):
            return
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _begin(self, request: EngineRequest) -> None:
        if isinstance(request, CancelRequest):
            if task := self._tasks.get(request.number):
                task.cancel()
            return
        task = self._tasks[request.number] = asyncio.create_task(self._reply(request))
        task.add_done_callback(lambda task: self._end(request.number, task))

    def _end(self, number: int, task: asyncio.Task[None]) -> None:
        """Close the socket after an unforeseen error: otherwise the trainer would wait for this reply
        indefinitely.
        """
        del self._tasks[number]
        if not task.cancelled() and task.exception() is not None:
            self._writer.close()
            task.result()  # raises: the event loop logs it

    async def _reply(self, request: SampleRequest | LoadRequest | UnloadRequest) -> None:
        try:
            reply = await self._handle(request)
        except AppError as error:
            reply = ErrorReply(request.number, str(error), error.status)
        write(self._writer, reply)

    async def _handle(self, request: SampleRequest | LoadRequest | UnloadRequest) -> EngineReply:
        match request:
            case SampleRequest():
                return await self._sample(request)
            case LoadRequest(name=name, path=path):
                if name not in self._service.loaded:
                    await self._service.load(LoadAdapterRequest(name, path))
            case UnloadRequest(name=name):
                if name in self._service.loaded:
                    await self._service.unload(name)
        return OkReply(request.number)

    async def _sample(self, request: SampleRequest) -> EngineReply:
        sampling = request.sampling
        prepared = self._service.prepare(
            CompletionRequest(
                model=request.model,
                prompt=list(request.prompt_ids),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                seed=sampling.seed,
                stop_token_ids=list(sampling.stop_token_ids),
                stop=list(sampling.stop_strings),
                allowed_token_ids=list(sampling.allowed_token_ids) or None,
            )
        )
        async for chunk in self._service.generate(prepared, stream=False):
            if chunk.finish in ("stop", "length"):
                return SampleReply(request.number, Completion(chunk.ids, chunk.logprobs, chunk.finish))
        return ErrorReply(request.number, "the engine was stopped during the generation", 503)


if __name__ == "__main__":
    main()
