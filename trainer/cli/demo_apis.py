"""`sage demo-apis`."""

import click

from app.guarded_output import guard_output
from app.ports import check_port
from app.settings import Settings
from trainer.worlds.demo import make_token


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8100, show_default=True)
@click.option(
    "--busy",
    type=click.FloatRange(0, 0.9),
    default=0.0,
    show_default=True,
    help="share of log-ins refused with 503",
)
def demo_apis(host: str, port: int, busy: float) -> None:
    """Serve the APIs of the demo project over HTTP."""
    from trainer.worlds.office.services import serve  # noqa: PLC0415  Litestar takes a moment, which `--help` need not wait for

    guard_output()
    check_port(host, port, "another --port, or SAGE_DEMO_PORT where `sage up` starts it")
    serve(host, port, make_token(Settings.from_env().data_dir), busy=busy)
