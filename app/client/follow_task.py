"""Follow a task to its end, and the exit code that says how it ended."""

import json
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Any
from uuid import UUID

import click

from app.base.text import visible
from app.client.server import ServerError
from app.client.task_story import TaskStory
from app.client.terminal import ServerSession, show_json
from app.client.words import readable_error

_SUCCESS = 0.5  # the least score of one


class TaskExit(IntEnum):
    """Exit codes of commands that follow a task. Others: 2 wrong usage, 5 no server answers, 6 it refused."""

    SUCCEEDED = 0
    FAILED = 1
    SCORED_AS_FAILURE = 3
    CANCELLED = 4
    INTERRUPTED = 130  # the command; the task goes on


def follow_task(session: ServerSession, task_id: UUID, *, quiet: bool = False) -> TaskExit:
    """Tell what the task does on standard error, and print its answer, or the task as JSON, at its end.

    Raises ServerError.
    """
    story = TaskStory(quiet=quiet)
    while True:
        try:
            with story:
                for event in session.server.task_events(task_id, story.last_id, story.lost):
                    story.tell(event)
            break
        except KeyboardInterrupt:
            if not _cancels(session, task_id):
                return TaskExit.INTERRUPTED
    task = session.server.request("GET", f"/v1/tasks/{task_id}")
    if session.as_json:
        show_json(task)
    elif task["answer"] is not None:
        click.echo(_text(task["answer"]))
    return exit_of(task)


def exit_of(task: Mapping[str, Any]) -> TaskExit:
    """Of a task that has ended.

    >>> exit_of({"state": "done", "stop_reason": "completed", "score": None}).name
    'SUCCEEDED'
    >>> exit_of({"state": "done", "stop_reason": "turn_limit", "score": 0.0}).name
    'SCORED_AS_FAILURE'
    """
    if task["state"] == "cancelled":
        return TaskExit.CANCELLED
    if task["state"] == "done" and task["score"] is not None:
        return TaskExit.SUCCEEDED if task["score"] >= _SUCCESS else TaskExit.SCORED_AS_FAILURE
    completed = task["state"] == "done" and task["stop_reason"] == "completed"
    return TaskExit.SUCCEEDED if completed else TaskExit.FAILED


def _cancels(session: ServerSession, task_id: UUID) -> bool:
    """Ask, on a terminal, whether to cancel the task. False: it goes on, and how it can be followed was said."""
    try:
        if sys.stdin.isatty() and click.confirm("\ncancel the task, too?", err=True):
            session.server.request("POST", f"/v1/tasks/{task_id}/cancel")
            return True
    except click.Abort:
        pass  # Ctrl-C again
    except ServerError as error:
        click.echo(readable_error(str(error)), err=True)
    click.echo(
        f"\nthe task goes on\n  follow it:  sage tasks {task_id} --follow\n"
        f"  cancel it:  sage tasks {task_id} --cancel",
        err=True,
    )
    return False


def _text(answer: object) -> str:
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return visible(text) if sys.stdout.isatty() else text
