"""`sage practice`."""

from typing import TYPE_CHECKING
from uuid import UUID

import click

from app.client.options import project_option, server_command
from app.run_settings import PRACTICE, RunKind, RunSettings
from trainer.cli.tables import show_result

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


@click.command()
@server_command
@project_option
@click.argument("name")
@click.option("--hours", type=float, default=RunSettings().hours, show_default=True, help="of the whole run")
@click.option("--watch", is_flag=True, help="follow it to its end")
def practice(session: "ServerSession", project: str | None, name: str, hours: float, watch: bool) -> None:
    """Teach the model the API NAME on a double of it, which is made from its document.

    No call goes to the API, but for reads that the project allows. Interrupting the command does not stop the run.
    """
    from trainer.cli.watch_run import watch_run  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for

    settings = {"kind": RunKind.PRACTICE.value, "environment": f"{PRACTICE}?api={name}", "hours": hours}
    run = session.server.request("POST", "/v1/training-runs", {"project": project, "settings": settings})
    if not watch:
        told = f"run {run['id']}: {run['estimate']}\nfollow it with: sage runs {run['id']} --follow"
        session.confirm(run, told)
        return
    click.echo(f"run {run['id']}: {run['estimate']}", err=True)
    show_result(session, watch_run(session.server, UUID(run["id"])))
