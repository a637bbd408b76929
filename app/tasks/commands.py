"""`sage run` and `sage tasks`."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from app.base.values import GRADES, Stop, explored, in_words
from app.client.options import page_options, project_option, server_command, text_of_file, text_of_stdin
from app.client.words import Listing, age, value_text
from app.releases.commands import release_id

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
    from app.tasks.follow import follow_task  # noqa: PLC0415  as ServerSession

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


TASK_STATES = ("accepted", "running", "waiting", "done", "failed", "cancelled")
_FOUND = ("arrived", "not-arrived")
_LISTING = Listing(
    ("id", "state", "score", "age", "answer", "instruction"),
    lambda task: (
        task["id"],
        task["state"],
        "-" if task["finished_at"] is None else in_words(task["score"]),
        age(task["created_at"]),
        "-" if task["answer"] is None else value_text(task["answer"]),
        task["instruction"],
    ),
    "tasks",
    by_project=True,
)


class _TaskId(click.types.UUIDParameterType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        try:
            return value if isinstance(value, UUID) else UUID(value)
        except ValueError:
            self.fail(f"{value!r} is no id of a task: `sage tasks` lists them", param, ctx)


@click.command()
@server_command
@project_option
@click.argument("task", type=_TaskId(), required=False)
@click.option(
    "--follow", is_flag=True, help="show what it did, and follow it to its end; exit codes as of `sage run`"
)
@click.option("--cancel", is_flag=True, help="cancel it")
@click.option("--settle", type=click.Choice(_FOUND), help="say what became of its call in doubt; then it goes on")
@click.option("--result", metavar="JSON", help="with --settle arrived: what the call returned")
@click.option("--state", type=click.Choice(TASK_STATES), help="list only tasks in this state")
@click.option("--stop-reason", type=click.Choice([each.value for each in Stop]), help="ended for this reason")
@click.option("--scenario", help="of this scenario")
@click.option("--search", "q", metavar="WORDS", help="whose instruction has all of these words")
@click.option("--skill", "skill_id", type=click.UUID, help="that were offered this skill")
@click.option("--release", type=click.IntRange(1), metavar="NUMBER", help="that this release served")
@click.option("--since", "created_after", type=click.DateTime(), help="submitted after this time, UTC")
@click.option("--until", "created_before", type=click.DateTime(), help="submitted before this time, UTC")
@click.option("--min-score", type=float, help="scored, with at least this score")
@click.option("--max-score", type=float, help="scored, with at most this score")
@page_options
def tasks(
    session: "ServerSession",
    task: UUID | None,
    follow: bool,
    cancel: bool,
    settle: str | None,
    result: str | None,
    release: int | None,
    **only: Any,
) -> None:
    """List tasks, newest first, or show TASK."""
    if result is not None and settle != "arrived":
        raise click.UsageError("--result needs --settle arrived")
    if task is None:
        if follow or cancel or settle:
            raise click.UsageError("name the task: `sage tasks` lists them")
        times = {name: only[name] and _in_utc(only[name]) for name in ("created_after", "created_before")}
        served = release and release_id(session.server, release, only["project"])
        session.show_list("/v1/tasks", _LISTING, release_id=served, **only | times)
        return
    path = f"/v1/tasks/{task}"
    if settle:
        body = {"arrived": settle == "arrived"} | ({} if result is None else {"result": _json(result)})
        shown = session.server.request("POST", f"{path}/settle", body)
    else:
        shown = session.server.request(*(("POST", f"{path}/cancel") if cancel else ("GET", path)))
    if follow:
        from app.tasks.follow import follow_task  # noqa: PLC0415  as ServerSession

        sys.exit(follow_task(session, task))
    session.show(shown, _with_names, code="check")


@click.command
@server_command
@click.argument("task", type=_TaskId())
@click.argument("score", metavar="SCORE")
@click.option("--comment", help="for whoever reads the task")
def score(session: "ServerSession", task: UUID, score: str, comment: str | None) -> None:
    """Score TASK, which has ended: solved, half, failed, or a number from 0 to 1.

    Skills prove themselves by scores, and training runs learn from them.
    """
    body = {"task_id": str(task), "score": _score(score), "comment": comment}
    given = session.server.request("POST", "/v1/feedback", body)
    session.confirm(given, f"{in_words(given['score'])}: the score of task {task} is stored")


def _score(text: str) -> float:
    grades = {name.lower(): value for name, value in GRADES}
    try:
        return grades[text.lower()] if text.lower() in grades else float(text)
    except ValueError:
        raise click.UsageError(f"SCORE is {', '.join(grades)}, or a number from 0 to 1, not {text!r}") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--result is not JSON: {error}") from error


def _in_utc(time: datetime) -> str:
    return time.replace(tzinfo=UTC).isoformat()


def _with_names(task: Mapping[str, Any]) -> dict[str, Any]:
    """With the names of its skills alone, in words whether it explored, and without links and ranks."""
    skills = {
        kind: ", ".join(f"{each['name']} v{each['version']}" for each in of)
        for kind, of in task["skills"].items()
        if kind != "selection"
    }
    shown = {name: value for name, value in task.items() if name not in ("links", "exploration")}
    return shown | {"skills": skills, "explored": explored(task.get("exploration"))}
