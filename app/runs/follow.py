"""Follow a training run from the command line until it ends."""

from typing import Any, Self
from uuid import UUID

import click
from tqdm import tqdm

from app.base.errors import AppError
from app.client.server import SageClient

_SHOWN = ("reward_1", "reward_2", "outcome", "trained_fraction")  # shown next to the bar, where a step has them
_QUIET = "no signal: all rollouts of every group had the same reward"


class RunFailedError(AppError):
    """The run failed or was cancelled. The message is the run's failure."""


def watch_run(server: SageClient, run_id: UUID) -> dict[str, Any]:
    """Wait for the end of a run and return it. What it does goes to standard error: on a terminal as a bar, else a
    line for each step, and for each phase of what comes between.

    Raises RunFailedError for a run that failed or was cancelled, and ServerError.
    """
    try:
        return _checked(_followed(server, run_id))
    except KeyboardInterrupt:
        follow, cancel = f"sage runs {run_id} --follow", f"sage runs {run_id} --cancel"
        click.echo(f"\nthe run goes on\n  follow it:  {follow}\n  cancel it:  {cancel}", err=True)
        raise


def _followed(server: SageClient, run_id: UUID) -> dict[str, Any]:
    """The run once it has ended."""
    with _Progress() as progress:
        for event in server.run_events(run_id):
            if event.kind == "step":
                progress.step(event.data["index"], event.data["metrics"])
            elif event.kind == "part":
                progress.part(**event.data)
            else:
                progress.state(event.data["state"], event.data["step"], event.data["steps"])
                if event.kind == "done":
                    return event.data
    raise AssertionError("the stream ends with `done` or raises")


class _Progress:
    """A bar on a terminal, elsewhere lines."""

    def __init__(self) -> None:
        self._bar = tqdm(unit="step", desc="queued", disable=None)
        self._told = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


def _checked(run: dict[str, Any]) -> dict[str, Any]:
    if run["state"] == "failed":
        raise RunFailedError(run["failure"] or "the run failed without a reason")
    if run["state"] == "cancelled":
        raise RunFailedError(f"run {run['id']} was cancelled; `sage runs {run['id']} --retry` resumes it")
    return run
