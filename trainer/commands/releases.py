"""`sage releases`."""

from typing import Any

import click

from app.errors import NotFoundError
from trainer.commands.server import project_option, server_options
from trainer.remote.run_lines import columns, release_row, show_release

_HEAD = ("release", "state", "model", "made", "serves since", "the gate said")


@click.command()
@server_options
@project_option
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--activate", is_flag=True, help="let it serve; activating an older one rolls back")
@click.option("--rejected-too", is_flag=True, help="also if the gate rejected it")
def releases(
    url: str, key: str, project: str | None, number: int | None, activate: bool, rejected_too: bool
) -> None:
    """List releases, newest first, or show release NUMBER."""
    from trainer.remote.rest import Server  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait

    if number is None and activate:
        raise click.UsageError("name the release: `sage releases` lists them")
    with Server(url, key) as server:
        found: list[dict[str, Any]] = server.ask("GET", "/v1/releases", project=project)
        if number is None:
            click.echo(columns([_HEAD, *map(release_row, found)]))
            return
        release = next((each for each in found if each["number"] == number), None)
        if release is None:
            raise NotFoundError(f"there is no release {number}: `sage releases` lists them")
        if activate:
            path = f"/v1/releases/{release['id']}/activate"
            release = server.ask("POST", path, rejected_too=str(rejected_too).lower())
        click.echo(show_release(release))
