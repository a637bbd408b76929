"""Follow a training run from the command line until it ends."""

from typing import Any
from uuid import UUID

import click
from tqdm import tqdm

from app.client.sage_client import SageClient
from app.errors import AppError

_SHOWN = ("reward_1", "reward_2", "outcome", "trained_fraction")  # shown next to the bar, where a step has them
_QUIET = "no signal: all rollouts of every group had the same reward"


class RunFailedError(AppError):
    """The run failed or was cancelled. The message is the run's failure."""


def watch_run(server: SageClient, run_id: UUID) -> dict[str, Any]:
    """Wait for the end of a run and return it. Bar and warnings go to standard error.

    Raises RunFailedError for a run that failed or was cancelled, and ServerError.
    """
    with tqdm(unit="step", desc="queued") as bar:
        for event in server.run_events(run_id):
            if event.kind == "step":
                _show_step(bar, event.data["index"], event.data["metrics"])
                continue
            if event.kind == "part":
                bar.set_description("{phase} {done}/{total}".format(**event.data))
                continue
            bar.total = event.data["steps"] or None
            bar.set_description(event.data["state"])
            if event.kind == "done":
                return _checked(event.data)
    raise AssertionError("the stream ends with `done` or raises")


def _show_step(bar: "tqdm[Any]", index: int, metrics: dict[str, Any]) -> None:
    bar.n = index
    bar.set_description("running")
    bar.set_postfix({name: f"{metrics[name]:.3g}" for name in _SHOWN if name in metrics})
    for warning in metrics.get("warnings", [_QUIET] if metrics.get("no_signal") else []):
        with bar.external_write_mode():
            click.echo(f"WARNING, step {index}: {warning}", err=True)


def _checked(run: dict[str, Any]) -> dict[str, Any]:
    if run["state"] == "failed":
        raise RunFailedError(run["failure"] or "the run failed without a reason")
    if run["state"] == "cancelled":
        raise RunFailedError(f"run {run['id']} was cancelled; `sage runs {run['id']} --retry` resumes it")
    return run
