"""`sage run`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from app.client.options import project_option, server_command, text_of_file, text_of_stdin

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


@click.command(
    epilog="Exit code: 0 the task was completed, or scored as a success; 1 it failed, or ended without being "
    "completed; 2 wrong usage; 3 it was scored as a failure; 4 it was cancelled; 5 no server answers; 6 the "
    "server refused a request; 130 interrupted, the task goes on."
)
@server_command
@click.argument("instruction")
@project_option
@click.option("--scenario", help="a label that tasks of this kind share")
@click.option("--principal", default="", help="the user on whose behalf it is carried out")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True)
@click.option("--variables", "given", metavar="NAME=VALUE", multiple=True, help="of server URLs; repeatable")
@click.option(
    "--check",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="file of Python that scores the task: it has `answer` and sets `score`",
)
@click.option("--skills/--no-skills", "use_skills", default=True, show_default=True, help="offer it skills")
@click.option(
    "--explore/--no-explore",
    default=True,
    show_default=True,
    help="let it be sampled at temperature 1 for learning, if it is chosen to",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="follow it to its end")
@click.option("--quiet", is_flag=True, help="print only the answer")
def run(
    session: "ServerSession",
    instruction: str,
    given: tuple[str, ...],
    check: Path | None,
    follow: bool,
    quiet: bool,
    **fields: object,
) -> None:
    """Submit a task, and show what it does: its code, calls, output, skills and answer.

    INSTRUCTION says what to do, in natural language; `-` reads it from standard input. The answer goes to standard
    output, everything else to standard error.
    """
    from app.client.follow_task import follow_task  # noqa: PLC0415  as ServerSession

    text = text_of_stdin("INSTRUCTION") if instruction == "-" else instruction
    task = {"instruction": text, "variables": _variables(given), **fields}
    if check is not None:
        task["check"] = text_of_file(check, "--check")
    accepted = session.server.submit(task)
    if not follow:
        session.confirm(accepted, accepted["id"])
        return
    if not quiet:
        click.echo(f"task {accepted['id']}", err=True)
    sys.exit(follow_task(session, UUID(accepted["id"]), quiet=quiet))


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    """
    >>> _variables(("region=eu", "path=a=b"))
    {'region': 'eu', 'path': 'a=b'}
    """
    pairs = [each.partition("=") for each in given]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r}: write --variables name=value", param_hint="--variables")
    return {name: value for name, _, value in pairs}
