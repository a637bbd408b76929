"""`sage runs`."""

from uuid import UUID

import click

from trainer.cli.options import project_option, server_options
from trainer.cli.tables import columns, run_row, show_result, show_run

_STATES = ("queued", "running", "done", "failed", "cancelled")
_HEAD = ("run", "kind", "state", "steps", "created", "failure")


@click.command()
@server_options
@project_option
@click.argument("run", type=click.UUID, required=False)
@click.option("--cancel", is_flag=True, help="cancel it")
@click.option("--retry", is_flag=True, help="resume a failed or cancelled run from its checkpoint")
@click.option("--follow", is_flag=True, help="follow it to its end; exit code 1 if it fails")
@click.option("--state", type=click.Choice(_STATES), help="list only runs in this state")
@click.option(
    "--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="maximum number of runs to list"
)
def runs(  # noqa: PLR0913 - the command's options
    url: str,
    key: str,
    project: str | None,
    run: UUID | None,
    cancel: bool,
    retry: bool,
    follow: bool,
    state: str | None,
    limit: int,
) -> None:
    """List training runs, newest first, or show RUN."""
    from trainer.cli.watch_run import watch_run  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for
    from trainer.client import SageClient  # noqa: PLC0415

    if run is None and (cancel or retry or follow):
        raise click.UsageError("name the run: `sage runs` lists them")
    if cancel and retry:
        raise click.UsageError("either --cancel or --retry")
    with SageClient(url, key) as server:
        if run is None:
            page = server.request("GET", "/v1/training-runs", project=project, state=state, limit=limit)
            click.echo(columns([_HEAD, *map(run_row, page["runs"])]))
            return
        path = f"/v1/training-runs/{run}"
        if cancel and server.request("GET", path)["state"] == "cancelled":
            click.echo(f"run {run} was already cancelled", err=True)
        for wanted, move in ((cancel, "cancel"), (retry, "retry")):
            if wanted:
                server.request("POST", f"{path}/{move}")
        if follow:
            show_result(watch_run(server, run))
        else:
            click.echo(show_run(server.request("GET", path)))
