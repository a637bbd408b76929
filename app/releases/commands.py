"""`sage releases`."""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.base.settings import Settings
from app.client.activation_text import activation_lines
from app.client.options import project_option, server_command
from app.client.release_lookup import release_id
from trainer.cli.tables import RELEASES, release_evidence

if TYPE_CHECKING:
    from app.client.server import SageClient
    from app.client.terminal import ServerSession


@click.command()
@server_command
@project_option
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--activate", is_flag=True, help="serve it; activating an older release rolls back")
@click.option("--keep-skills", is_flag=True, help="with --activate: leave the skills as they are")
@click.option("--yes", is_flag=True, help="with --activate: do not ask, on a terminal, whether to go on")
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
@click.option("--hosted", metavar="NAME", help="create a release of the project's hosted model NAME")
@click.option("--reason", help="why it is added; shown as the reason of the gate")
def releases(  # noqa: PLR0913 - an argument for each option
    session: "ServerSession",
    project: str | None,
    number: int | None,
    activate: bool,
    keep_skills: bool,
    yes: bool,
    allow_rejected: bool,
    canary: float | None,
    shadow: int | None,
    add: Path | None,
    hosted: str | None,
    reason: str | None,
) -> None:
    """List releases, newest first, or show release NUMBER."""
    _check(add, hosted, number, reason)
    if (keep_skills or yes) and not activate:
        raise click.UsageError("--keep-skills and --yes need --activate")
    if not (number or add or hosted):
        _refuse_unnamed(changed=activate or canary is not None or bool(shadow))
        session.show_list("/v1/releases", RELEASES, project=project)
        return
    server = session.server
    policy = {"hosted": hosted} if hosted else _adapter(add) if add else None
    id_ = _propose(server, policy, project, reason) if policy else release_id(server, number, project)
    path = f"/v1/releases/{id_}"
    if activate:
        _activate(server, path, "keep" if keep_skills else "restore", ask=not yes, allow_rejected=allow_rejected)
    if canary is not None:
        server.request(*_canary(path, canary), allow_rejected=allow_rejected if canary else None)
    if shadow:
        server.request("POST", f"{path}/shadow", {"tasks": shadow})
    release = server.request("GET", path)
    session.show(release, lambda release: _all_of(server, path, release))


def _check(add: Path | None, hosted: str | None, number: int | None, reason: str | None) -> None:
    """Raises UsageError unless one release is meant, of one policy."""
    if (add or hosted) and number:
        raise click.UsageError(f"--{'add' if add else 'hosted'} creates a release: do not name another")
    if add and hosted:
        raise click.UsageError("a release has one policy: give --add or --hosted")
    if reason and not (add or hosted):
        raise click.UsageError("--reason needs --add DIR or --hosted NAME")


def _propose(server: "SageClient", policy: dict[str, str], project: str | None, reason: str | None) -> str:
    """The id of the new release."""
    body = policy | {"project": project} | ({"reason": reason} if reason else {})
    return str(server.request("POST", "/v1/releases", body)["id"])


def _adapter(directory: Path) -> dict[str, str]:
    """The adapter of a directory, imported."""
    from app.adapters.store import AdapterStore  # noqa: PLC0415  fsspec takes a moment, which `--help` need not wait for

    settings = Settings.from_env()
    store = AdapterStore(settings.adapters_dir, settings.adapter_store)
    return {"adapter": asyncio.run(store.import_adapter(directory))}


def _refuse_unnamed(*, changed: bool) -> None:
    if changed:
        raise click.UsageError("name the release: `sage releases` lists them")


def _activate(server: "SageClient", path: str, skills: str, *, ask: bool, allow_rejected: bool) -> None:
    """Activate it, and say on standard error what that changes: before it asks, or once it is done."""
    number = server.request("GET", path)["number"]
    planned: Any = None
    if ask and sys.stdin.isatty():
        planned = server.request("GET", f"{path}/activate", skills=skills)
        _say(activation_lines(number, planned))
        if planned["replaces"] is not None:
            click.confirm("go on?", abort=True, err=True)
    done = server.request("POST", f"{path}/activate", allow_rejected=allow_rejected, skills=skills)
    if done["changes"] != planned:
        _say(activation_lines(number, done["changes"]))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def _canary(path: str, percent: float) -> tuple[str, str, object]:
    """The request that starts or ends a canary."""
    if not percent:
        return "DELETE", f"{path}/canary", None
    return "POST", f"{path}/canary", {"percent": percent}


def _all_of(server: "SageClient", path: str, release: Mapping[str, Any]) -> dict[str, Any]:
    """The release with the figures of its canary or watch, and the results of its shadow tasks."""
    shown = {**release, "evidence": release_evidence(release)}
    if release["state"] == "canary":
        shown["canary"] = server.request("GET", f"{path}/canary")
    if release["watched"]:
        shown["watch"] = server.request("GET", f"{path}/watch")
    shadows = server.request("GET", f"{path}/shadow")
    return shown | ({"shadow": shadows} if shadows["tasks"] else {})
