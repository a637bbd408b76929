"""`sage releases`."""

from typing import TYPE_CHECKING, Any

import click

from app.errors import NotFoundError
from trainer.commands.server import project_option, server_options
from trainer.remote.run_lines import columns, release_row, show_release

if TYPE_CHECKING:
    from trainer.remote.rest import Server

_HEAD = ("release", "state", "model", "made", "serves since", "the gate said")


@click.command()
@server_options
@project_option
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--activate", is_flag=True, help="let it serve; activating an older one rolls back")
@click.option("--rejected-too", is_flag=True, help="also if the gate rejected it")
@click.option(
    "--canary", type=click.FloatRange(0, 100), help="let it serve so many percent of new tasks; 0 ends that"
)
@click.option(
    "--shadow", type=click.IntRange(1, 1_000), help="have it do so many finished tasks again, reading only"
)
def releases(  # noqa: PLR0913 - an argument for each option
    url: str,
    key: str,
    project: str | None,
    number: int | None,
    activate: bool,
    rejected_too: bool,
    canary: float | None,
    shadow: int | None,
) -> None:
    """List releases, newest first, or show release NUMBER."""
    from trainer.remote.rest import Server  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait

    if number is None and (activate or canary is not None or shadow):
        raise click.UsageError("name the release: `sage releases` lists them")
    with Server(url, key) as server:
        found: list[dict[str, Any]] = server.ask("GET", "/v1/releases", project=project)
        if number is None:
            click.echo(columns([_HEAD, *map(release_row, found)]))
            return
        release = next((each for each in found if each["number"] == number), None)
        if release is None:
            raise NotFoundError(f"there is no release {number}: `sage releases` lists them")
        path = f"/v1/releases/{release['id']}"
        if activate:
            server.ask("POST", f"{path}/activate", rejected_too=str(rejected_too).lower())
        if canary is not None:
            server.ask(*_canary(path, canary))
        if shadow:
            server.ask("POST", f"{path}/shadow", {"tasks": shadow})
        click.echo(show_release(_all_of(server, path)))


def _canary(path: str, percent: float) -> tuple[str, str, object]:
    """The request."""
    if not percent:
        return "DELETE", f"{path}/canary", None
    return "POST", f"{path}/canary", {"percent": percent}


def _all_of(server: "Server", path: str) -> dict[str, Any]:
    """The release, how it does as a canary, and how its shadows did."""
    release: dict[str, Any] = server.ask("GET", path)
    if release["state"] == "canary":
        release["canary"] = server.ask("GET", f"{path}/canary")
    shadows = server.ask("GET", f"{path}/shadow")
    return release | ({"shadow": shadows} if shadows["tasks"] else {})
