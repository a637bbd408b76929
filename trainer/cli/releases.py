"""`sage releases`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.errors import NotFoundError
from app.settings import Settings
from trainer.cli.options import project_option, server_options
from trainer.cli.tables import columns, release_row, show_release

if TYPE_CHECKING:
    from trainer.client import SageClient

_HEAD = ("release", "state", "model", "created", "active since", "reason of the gate")


@click.command()
@server_options
@project_option
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--activate", is_flag=True, help="serve it; activating an older release rolls back")
@click.option("--allow-rejected", is_flag=True, help="serve it even if its weights were rejected")
@click.option(
    "--canary", type=click.FloatRange(0, 100), help="serve this percentage of new tasks with it; 0 ends the canary"
)
@click.option(
    "--shadow", type=click.IntRange(1, 1_000), help="replay this many finished tasks with it, without side effects"
)
@click.option(
    "--add",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="create a release of the adapter in DIR; SAGE_DATA_DIR and SAGE_ADAPTER_STORE must be the server's",
)
@click.option("--reason", help="why it is added; shown as the reason of the gate")
def releases(  # noqa: PLR0913 - an argument for each option
    url: str,
    key: str,
    project: str | None,
    number: int | None,
    activate: bool,
    allow_rejected: bool,
    canary: float | None,
    shadow: int | None,
    add: Path | None,
    reason: str | None,
) -> None:
    """List releases, newest first, or show release NUMBER."""
    from trainer.client import SageClient  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for

    if add and number:
        raise click.UsageError("--add creates a release: do not name another")
    if reason and not add:
        raise click.UsageError("--reason needs --add DIR")
    if not (number or add) and (activate or canary is not None or shadow):
        raise click.UsageError("name the release: `sage releases` lists them")
    with SageClient(url, key) as server:
        if not (number or add):
            found = server.request("GET", "/v1/releases", project=project)
            click.echo(columns([_HEAD, *map(release_row, found)]))
            return
        allowed = {"allow_rejected": str(allow_rejected).lower()}
        path = _add(server, add, project, reason) if add else _path(server, number, project)
        if activate:
            server.request("POST", f"{path}/activate", **allowed)
        if canary is not None:
            server.request(*_canary(path, canary), **(allowed if canary else {}))
        if shadow:
            server.request("POST", f"{path}/shadow", {"tasks": shadow})
        click.echo(show_release(_all_of(server, path)))


def _path(server: "SageClient", number: int | None, project: str | None) -> str:
    found: list[dict[str, Any]] = server.request("GET", "/v1/releases", project=project)
    release = next((each for each in found if each["number"] == number), None)
    if release is None:
        raise NotFoundError(f"no release {number}: `sage releases` lists them")
    return f"/v1/releases/{release['id']}"


def _add(server: "SageClient", directory: Path, project: str | None, reason: str | None) -> str:
    """The path of the new release."""
    from app.adapters.store import AdapterStore  # noqa: PLC0415  fsspec takes a moment, which `--help` need not wait for

    settings = Settings.from_env()
    name = asyncio.run(AdapterStore(settings.adapters_dir, settings.adapter_store).import_adapter(directory))
    body = {"adapter": name, "project": project} | ({"reason": reason} if reason else {})
    return f"/v1/releases/{server.request('POST', '/v1/releases', body)['id']}"


def _canary(path: str, percent: float) -> tuple[str, str, object]:
    """The request that starts or ends a canary."""
    if not percent:
        return "DELETE", f"{path}/canary", None
    return "POST", f"{path}/canary", {"percent": percent}


def _all_of(server: "SageClient", path: str) -> dict[str, Any]:
    """The release with the figures of its canary or watch, and the results of its shadow tasks."""
    release: dict[str, Any] = server.request("GET", path)
    if release["state"] == "canary":
        release["canary"] = server.request("GET", f"{path}/canary")
    if release["watched"]:
        release["watch"] = server.request("GET", f"{path}/watch")
    shadows = server.request("GET", f"{path}/shadow")
    return release | ({"shadow": shadows} if shadows["tasks"] else {})
