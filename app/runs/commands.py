"""`sage train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from app.base.errors import InvalidError
from app.client.options import project_option, server_command
from app.run_settings import RunKind, RunSettings, read_settings
from trainer.cli.tables import show_result

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


@click.command(
    epilog="Settings and their defaults: "
    + ", ".join(
        f"{name}={value}"
        for name, value in msgspec.to_builtins(RunSettings()).items()
        if name != "kind" and value is not None
    )
    + "; since and until are times."
)
@server_command
@project_option
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in RunKind]),
    default=RunKind.LOGGED.value,
    show_default=True,
    help="fresh rollouts, served tasks with scores, chats and the best served tasks; exam: examine releases",
)
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="a setting; repeatable")
@click.option("--follow/--no-follow", default=True, show_default=True, help="follow it to its end")
def train(session: "ServerSession", project: str | None, kind: str, given: tuple[str, ...], follow: bool) -> None:
    """Start a training run on a server, and follow it. `data` may also name a file here, which is uploaded.

    Exits with code 1 if the run fails. Interrupting the command does not stop the run.
    """
    from trainer.cli.watch_run import watch_run  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for

    server, settings = session.server, _settings(kind, given)
    file = Path(settings.get("data", ""))
    if file.is_file():
        settings["data"] = server.upload("/v1/datasets", file, project=project, name=file.name[:200])["id"]
        click.echo(f"uploaded {file}", err=True)
    run = server.request("POST", "/v1/training-runs", {"project": project, "settings": settings})
    if not follow:
        session.confirm(run, f"run {run['id']}\nfollow it with: sage runs {run['id']} --follow")
        return
    click.echo(f"run {run['id']}", err=True)
    show_result(session, watch_run(server, UUID(run["id"])))


def _settings(kind: str, given: tuple[str, ...]) -> dict[str, Any]:
    """The given settings as JSON. Raises BadParameter for an unknown setting, or a value that does not fit."""
    named: dict[str, Any] = {"kind": kind}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r}: write --set name=value", param_hint="--set")
        named[name.strip().replace("-", "_")] = value
    try:
        whole = read_settings(named)
    except InvalidError as error:
        raise click.BadParameter(str(error), param_hint="--set") from error
    plain: dict[str, Any] = msgspec.to_builtins(whole)
    return {name: plain[name] for name in named}
