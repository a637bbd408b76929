"""`python -m app.engine.embedded`: one model directory behind vLLM's HTTP API, on this machine."""

import socket
from pathlib import Path

import click
import torch
import uvicorn

from app.engine.embedded.adapters import Adapters
from app.engine.embedded.decoder import Decoder, load_model
from app.engine.embedded.embeddings import Embeddings
from app.engine.embedded.metrics import Metrics
from app.engine.embedded.scheduler import Scheduler
from app.engine.embedded.server import create_app
from app.engine.embedded.service import Service
from app.engine.tokenizer import ChatTokenizer
from app.errors import ModelError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@click.command()
@click.option("--model", required=True, type=click.Path(path_type=Path), help="A model directory.")
@click.option("--port", required=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda", "mps"]))
@click.option("--embeddings", default="minilm", show_default=True, help="minilm, none, a directory or a name.")
@click.option("--max-batch", default=64, show_default=True, type=click.IntRange(1), help="Rows of one pass.")
@click.option("--max-loras", default=8, show_default=True, type=click.IntRange(1), help="Adapters loaded at once.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(list(_DTYPES)))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Of torch, on a CPU.")
def main(  # noqa: PLR0913  one per option
    model: Path,
    port: int,
    host: str,
    device: str,
    embeddings: str,
    max_batch: int,
    max_loras: int,
    dtype: str,
    threads: int,
) -> None:
    """Serve a model directory."""
    torch.set_num_threads(threads)
    with _listen(host, port) as listener:
        try:
            tokenizer = ChatTokenizer.load(model)
            where = _device(device)
            network = load_model(model, where, _DTYPES[dtype])
            decoder = Decoder(network, max_batch)
        except ModelError as error:
            raise click.ClickException(str(error)) from error
        metrics, adapters = Metrics(), Adapters(network)
        scheduler = Scheduler(decoder, adapters, metrics, on_death=lambda: _end(server))
        service = Service(tokenizer, adapters, scheduler, max_loras)
        embedder = None if embeddings == "none" else Embeddings(embeddings, where)
        server = _server(create_app(service, embedder, metrics))
        scheduler.start()
        click.echo(f"serving {model} on http://{host}:{listener.getsockname()[1]} ({where}, {dtype})")
        server.run(sockets=[listener])
        if scheduler.failed:
            raise click.ClickException("the engine stopped after the error above.")


def _listen(host: str, port: int) -> socket.socket:
    """Taken before the model is loaded, so that an occupied port is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise click.ClickException(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --port, or stop what uses it."
        ) from error
    return listener


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name]:
        raise ModelError(f"torch sees no {name} device on this machine: use --device auto.")
    return name


def _server(app: object) -> uvicorn.Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def _end(server: uvicorn.Server) -> None:
    server.should_exit = True


if __name__ == "__main__":
    main()
