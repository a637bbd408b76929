"""`python -m app.model_server`: serves one model over vLLM's HTTP API."""

import socket
from typing import get_args

import click

from app.base.errors import ModelError, SettingError
from app.base.guarded_output import guard_output
from app.base.model_catalog import find_model
from app.base.processes import collect_seldom
from app.base.settings import EngineDtype, Settings
from app.engine.memory import loading
from app.engine.tokenizer import ChatTokenizer


@click.command()
@click.option("--model", required=True, help="A model directory, or a name of `sage models list`.")
@click.option("--port", required=True, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda", "mps"]))
@click.option("--dtype", default="auto", show_default=True, type=click.Choice(get_args(EngineDtype)))
@click.option("--embeddings", default="minilm", show_default=True, help="minilm, none, a directory or a name.")
@click.option("--max-batch", default=64, show_default=True, type=click.IntRange(1), help="Rows of a forward pass.")
@click.option("--kv-mb", default=512, show_default=True, type=click.IntRange(1), help="Memory of the KV cache.")
@click.option("--speculation/--no-speculation", default=True, show_default=True, help="Draft by look-up.")
@click.option("--max-loras", default=8, show_default=True, type=click.IntRange(1), help="Adapters at a time.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="CPU threads of torch.")
def main(host: str, port: int, model: str, **options: object) -> None:
    """Serve a model directory."""
    guard_output()
    collect_seldom()
    with _listen(host, port) as listener:
        try:
            path = find_model(model, Settings.from_env().data_dir)
            tokenizer = ChatTokenizer.load(path)
            click.echo(loading(model, path), err=True)
            # Imported here because torch takes seconds, and a wrong option or directory should fail before.
            from app.model_server.serve import EngineOptions, serve  # noqa: PLC0415

            sound = serve(EngineOptions(model=path, **options), tokenizer, listener)  # type: ignore[arg-type]
        except (ModelError, SettingError) as error:
            raise click.ClickException(str(error)) from error
    if not sound:
        raise click.ClickException("the engine stopped after the error above: start it again.")


def _listen(host: str, port: int) -> socket.socket:
    """Bind before the model is loaded, so that an occupied port is reported at once."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise click.ClickException(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --port, or stop what uses it."
        ) from error
    return listener


if __name__ == "__main__":
    main()
