"""Waiting for a task over REST."""

import time
from typing import Any

from trainer.client import SageClient

_ENDED = ("done", "failed", "cancelled")
_PAUSE_SECONDS = 0.2


def ended_task(server: SageClient, task_id: str) -> dict[str, Any]:
    """The task once it has ended."""
    while True:
        task: dict[str, Any] = server.request("GET", f"/v1/tasks/{task_id}")
        if task["state"] in _ENDED:
            return task
        time.sleep(_PAUSE_SECONDS)
