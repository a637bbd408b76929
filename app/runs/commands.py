"""`sage train`, `sage practice`, `sage runs` and `sage environments`."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

import click
import msgspec

from app.base.errors import AppError, InvalidError
from app.base.run_settings import PRACTICE, RunKind, RunSettings, read_settings
from app.client.options import page_options, project_option, server_command
from app.client.words import Listing, moment, readable_error

if TYPE_CHECKING:
    from app.client.server import SageClient
    from app.client.terminal import ServerSession

_STATES = ("queued", "running", "done", "failed", "cancelled")
_SHOWN = ("reward_1", "reward_2", "outcome", "trained_fraction")  # shown next to the bar, where a step has them
_QUIET = "no signal: all rollouts of every group had the same reward"


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
    _show_result(session, watch_run(server, UUID(run["id"])))


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


@click.command()
@server_command
@project_option
@click.argument("name")
@click.option("--hours", type=float, default=RunSettings().hours, show_default=True, help="of the whole run")
@click.option("--paraphraser", metavar="MODEL", help="a hosted model of the project that words the lessons, too")
@click.option("--watch", is_flag=True, help="follow it to its end")
def practice(
    session: "ServerSession", project: str | None, name: str, hours: float, paraphraser: str | None, watch: bool
) -> None:
    """Teach the model the API NAME on a double of it, which is made from its document.

    No call goes to the API, but for reads that the project allows. Interrupting the command does not stop the run.
    """
    options = {"api": name} | ({"paraphraser": paraphraser} if paraphraser else {})
    environment = f"{PRACTICE}?{urlencode(options)}"
    settings = {"kind": RunKind.PRACTICE.value, "environment": environment, "hours": hours}
    run = session.server.request("POST", "/v1/training-runs", {"project": project, "settings": settings})
    if not watch:
        told = f"run {run['id']}: {run['estimate']}\nfollow it with: sage runs {run['id']} --follow"
        session.confirm(run, told)
        return
    click.echo(f"run {run['id']}: {run['estimate']}", err=True)
    _show_result(session, watch_run(session.server, UUID(run["id"])))


def _show_result(session: "ServerSession", run: Mapping[str, Any]) -> None:
    """Show the result of a run that has ended."""
    session.show(run, lambda run: run["result"] or {"result": "none"})


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
        session.show_list("/v1/training-runs", _RUNS, **only)
        return
    path = f"/v1/training-runs/{run}"
    if cancel and session.server.request("GET", path)["state"] == "cancelled":
        click.echo(f"run {run} was already cancelled", err=True)
    for wanted, move in ((cancel, "cancel"), (retry, "retry")):
        if wanted:
            session.server.request("POST", f"{path}/{move}")
    if follow:
        _show_result(session, watch_run(session.server, run))
    else:
        session.show(session.server.request("GET", path), _run_fields)


def _run_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run, with the metrics of its last step."""
    shown = {name: value for name, value in run.items() if name not in ("links", "last_step")}
    shown["failure"] = readable_error(run["failure"] or "")
    return shown | ({"last step": run["last_step"]["metrics"]} if run["last_step"] else {})


def _run_row(run: Mapping[str, Any]) -> tuple[object, ...]:
    done = f"{run['step']}/{run['steps'] or '?'}" if run["step"] else "-"
    return (
        run["id"],
        run["kind"],
        run["state"],
        done,
        moment(run["created_at"]),
        readable_error(run["failure"] or ""),
    )


_RUNS = Listing(("run", "kind", "state", "steps", "created", "failure"), _run_row, items="runs")


@click.command()
@server_command
def environments(session: "ServerSession") -> None:
    """List the environments that the server's workers have installed."""
    session.show_list("/v1/environments", _LISTING)


def _options(schema: Mapping[str, Any]) -> str:
    """
    >>> _options({"properties": {"site": {"default": None}, "city": {}}})
    'city (required) site=null'
    """
    return " ".join(
        f"{name}={json.dumps(option['default'])}" if "default" in option else f"{name} (required)"
        for name, option in sorted(schema["properties"].items())
    )


_LISTING = Listing(
    ("environment", "version", "options and their defaults"),
    lambda each: (each["name"], each["version"], _options(each["options"])),
    empty="no worker has reported its environments yet: is one running?",
)


class RunFailedError(AppError):
    """The run failed or was cancelled. The message is the run's failure."""


def watch_run(server: "SageClient", run_id: UUID) -> dict[str, Any]:
    """Wait for the end of a run and return it. What it does goes to standard error: on a terminal as a bar, else a
    line for each step, and for each phase of what comes between.

    Raises RunFailedError for a run that failed or was cancelled, and ServerError.
    """
    try:
        with closing(_Progress()) as progress:
            for event in server.run_events(run_id):
                if event.kind == "step":
                    progress.step(event.data["index"], event.data["metrics"])
                elif event.kind == "part":
                    progress.part(**event.data)
                else:
                    progress.state(event.data["state"], event.data["step"], event.data["steps"])
                    if event.kind == "done":
                        return _done(event.data)
    except KeyboardInterrupt:
        follow, cancel = f"sage runs {run_id} --follow", f"sage runs {run_id} --cancel"
        click.echo(f"\nthe run goes on\n  follow it:  {follow}\n  cancel it:  {cancel}", err=True)
        raise
    raise AssertionError("the stream ends with `done` or raises")


def _done(run: dict[str, Any]) -> dict[str, Any]:
    if run["state"] == "failed":
        raise RunFailedError(run["failure"] or "the run failed without a reason")
    if run["state"] == "cancelled":
        raise RunFailedError(f"run {run['id']} was cancelled; `sage runs {run['id']} --retry` resumes it")
    return run


class _Progress:
    """A bar on a terminal, elsewhere lines."""

    def __init__(self) -> None:
        from tqdm import tqdm  # noqa: PLC0415  it takes a moment, which `--help` need not wait for

        self._bar = tqdm(unit="step", desc="queued", disable=None)
        self._told = ""

    def close(self) -> None:
        self._bar.close()

    def state(self, state: str, step: int, steps: int | None) -> None:
        self._bar.total = steps or None
        self._bar.set_description(state)
        self._tell(f"{state}, step {step}/{steps}" if steps else state, once=state)

    def part(self, phase: str, done: int, total: int, **_: object) -> None:
        self._bar.set_description(f"{phase} {done}/{total}")
        self._tell(f"{phase} {done}/{total}", once=phase)

    def step(self, index: int, metrics: dict[str, Any]) -> None:
        figures = {name: f"{metrics[name]:.3g}" for name in _SHOWN if name in metrics}
        self._bar.n = index
        self._bar.set_description("running")
        self._bar.set_postfix(figures)
        told = "".join(f" {name}={value}" for name, value in figures.items())
        self._tell(f"step {index}{told}", once="")
        for warning in metrics.get("warnings", [_QUIET] if metrics.get("no_signal") else []):
            with self._bar.external_write_mode():
                click.echo(f"WARNING, step {index}: {warning}", err=True)

    def _tell(self, line: str, *, once: str) -> None:
        """Where there is no bar. Of lines with the same `once` in a row, the first."""
        if self._bar.disable and not (once and once == self._told):
            click.echo(line, err=True)
        self._told = once
