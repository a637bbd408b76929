"""All parts of the embedded engine put together, from a checked directory to a process that serves."""

import socket
import sys
from pathlib import Path

import click
import msgspec
import torch
import uvicorn

from app.engine.embedded.adapters import Adapters
from app.engine.embedded.decoder import Decoder, load_model
from app.engine.embedded.embeddings import Embeddings
from app.engine.embedded.prometheus import Metrics
from app.engine.embedded.scheduler import SWITCH_SECONDS, Scheduler
from app.engine.embedded.server import create_app
from app.engine.embedded.service import Service
from app.engine.tokenizer import ChatTokenizer
from app.errors import ModelError


class Options(msgspec.Struct, frozen=True, kw_only=True):
    model: Path
    device: str  # auto, cpu, cuda, mps
    dtype: str  # float32, bfloat16
    embeddings: str  # minilm, none, a directory or a name
    max_batch: int  # rows of one forward pass
    max_loras: int
    threads: int


def serve(options: Options, tokenizer: ChatTokenizer, listener: socket.socket) -> bool:
    """Until a signal ends it. False where an error did. Raises ModelError where the model cannot be served."""
    torch.set_num_threads(options.threads)
    sys.setswitchinterval(SWITCH_SECONDS)
    device = resolve_device(options.device)
    model = load_model(options.model, device, getattr(torch, options.dtype))
    decoder = Decoder(model, options.max_batch)
    metrics, adapters = Metrics(options.max_loras), Adapters(model)
    scheduler = Scheduler(decoder, adapters, metrics, on_death=lambda: _end(server))
    service = Service(tokenizer, adapters, scheduler, options.max_loras)
    embeddings = None if options.embeddings == "none" else Embeddings(options.embeddings, device)
    server = _server(create_app(service, embeddings, metrics))
    scheduler.start()
    listener.listen(2048)  # from here on a connection waits instead of being refused
    host, port = listener.getsockname()[:2]
    click.echo(f"serving {options.model} on http://{f'[{host}]' if ':' in host else host}:{port} ({device})")
    server.run(sockets=[listener])
    return not scheduler.failed


def resolve_device(name: str) -> str:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, here in available.items() if here)
    if not available[name]:
        raise ModelError(f"torch sees no {name} device on this machine: use --device auto.")
    return name


def _server(app: object) -> uvicorn.Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # uvicorn and litestar name the ASGI types differently
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def _end(server: uvicorn.Server) -> None:
    server.should_exit = True
