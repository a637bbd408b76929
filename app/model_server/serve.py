"""Assembles and runs the embedded engine."""

import ctypes
import math
import socket
import sys
from pathlib import Path

import click
import msgspec
import torch
import uvicorn

from app.base.errors import ModelError
from app.engine.tokenizer import ChatTokenizer
from app.model_server.api import EngineService, create_app
from app.model_server.decoder import MB, Decoder, load_model
from app.model_server.device import resolve_dtype
from app.model_server.embeddings import EmbeddingModel
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import SWITCH_INTERVAL, EngineMetrics, Scheduler


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: Path
    device: str  # auto, cpu, cuda, mps
    dtype: str  # auto, float32, bfloat16, int8
    embeddings: str  # minilm, none, a directory or a name
    max_batch: int  # rows of one forward pass
    max_loras: int
    kv_mb: int
    speculation: bool  # tokens are drafted by look-up where it pays
    threads: int


def serve(options: EngineOptions, tokenizer: ChatTokenizer, listener: socket.socket) -> bool:
    """Serve until a signal. Returns False if an error ended it. Raises ModelError for an unsupported model."""
    torch.set_num_threads(options.threads)
    sys.setswitchinterval(SWITCH_INTERVAL)
    device = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device, options.model)
    model = load_model(options.model, device, dtype, kv_mb=options.kv_mb, adapters=options.max_loras)
    decoder = Decoder(model, options.kv_mb)
    _return_freed_memory()
    metrics, adapters = EngineMetrics(options.max_loras), AdapterSet(decoder.model)

    def exit_on_death() -> None:
        server.should_exit = True

    scheduler = Scheduler(
        decoder,
        adapters,
        metrics,
        on_death=exit_on_death,
        max_rows=options.max_batch,
        pass_seconds=decoder.pass_seconds() if options.speculation else (),
    )
    service = EngineService(tokenizer, adapters, scheduler, options.max_loras)
    embeddings = None if options.embeddings == "none" else EmbeddingModel(options.embeddings, device)
    config = uvicorn.Config(
        create_app(service, embeddings, metrics),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=125,  # longer than proxies keep connections, as the API does
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    scheduler.start()
    listener.listen(2048)  # from here on connections wait instead of being refused
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    click.echo(f"serving {options.model} on {url} ({device}, {_memory(decoder, dtype, options, scheduler)})")
    server.run(sockets=[listener])
    return not scheduler.failed


def _return_freed_memory() -> None:
    """Weights were read and then packed anew. glibc keeps what is freed in between; other C libraries do not."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _memory(decoder: Decoder, dtype: torch.dtype, options: EngineOptions, scheduler: Scheduler) -> str:
    weights = math.ceil(decoder.weight_bytes / MB)
    held = f"{options.kv_mb} MB of KV cache for {scheduler.memory.tokens:,} tokens"
    return f"{weights} MB of weights in {str(dtype).removeprefix('torch.')}, {held}"


def resolve_device(name: str) -> str:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, here in available.items() if here)
    if not available[name]:
        raise ModelError(f"torch sees no {name} device on this machine: use --device auto.")
    return name
