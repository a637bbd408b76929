"""`sage runs`."""

from typing import TYPE_CHECKING
from uuid import UUID

import click

from app.client.options import page_options, project_option, server_command
from trainer.cli.tables import RUNS, run_fields, show_result

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

_STATES = ("queued", "running", "done", "failed", "cancelled")


@click.command()
@server_command
@project_option
@click.argument("run", type=click.UUID, required=False)
@click.option("--cancel", is_flag=True, help="cancel it")
@click.option("--retry", is_flag=True, help="resume a failed or cancelled run from its checkpoint")
@click.option("--follow", is_flag=True, help="follow it to its end; exit code 1 if it fails")
@click.option("--state", type=click.Choice(_STATES), help="list only runs in this state")
@page_options
def runs(
    session: "ServerSession", run: UUID | None, cancel: bool, retry: bool, follow: bool, **only: object
) -> None:
    """List training runs, newest first, or show RUN."""
    if run is None and (cancel or retry or follow):
        raise click.UsageError("name the run: `sage runs` lists them")
    if cancel and retry:
        raise click.UsageError("either --cancel or --retry")
    if run is None:
        session.show_list("/v1/training-runs", RUNS, **only)
        return
    path = f"/v1/training-runs/{run}"
    if cancel and session.server.request("GET", path)["state"] == "cancelled":
        click.echo(f"run {run} was already cancelled", err=True)
    for wanted, move in ((cancel, "cancel"), (retry, "retry")):
        if wanted:
            session.server.request("POST", f"{path}/{move}")
    if follow:
        from trainer.cli.watch_run import watch_run  # noqa: PLC0415  httpx takes a moment, as ServerSession

        show_result(session, watch_run(session.server, run))
    else:
        session.show(session.server.request("GET", path), run_fields)
