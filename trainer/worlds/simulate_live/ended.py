"""Waiting for tasks and runs over REST."""

import time
from typing import Any

from app.client.sage_client import SageClient, ServerError

_ENDED = ("done", "failed", "cancelled")
_PAUSE_SECONDS = 0.2


def ended_task(server: SageClient, task_id: str) -> dict[str, Any]:
    """The task once it has ended."""
    return _ended(server, f"/v1/tasks/{task_id}")


def ended_run(server: SageClient, run_id: str) -> dict[str, Any]:
    """The training run once it is done. Raises ServerError if it failed or was cancelled."""
    run = _ended(server, f"/v1/training-runs/{run_id}")
    if run["state"] != "done":
        raise ServerError(f"training run {run_id} {run['state']}: {run['failure']}")
    return run


def _ended(server: SageClient, path: str) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = server.request("GET", path)
        if found["state"] in _ENDED:
            return found
        time.sleep(_PAUSE_SECONDS)
