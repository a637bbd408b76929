"""Follows a task on a terminal: what it does is told on standard error as its events arrive, and the exit code
says how it ended.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import click
from rich.text import Text

from app.agent.action import extract_code, words_before_code
from app.base.text import numbered, visible
from app.base.values import GOOD, Stop, in_words, what_to_do
from app.client.server import ServerError, ServerEvent
from app.client.terminal import ServerSession, python_code, show_json, terminal
from app.client.words import arguments_text, readable_error

Data = Mapping[str, Any]

_LONGEST_OUTPUT = 4_000  # characters of a turn's output
_DOING = {"turn": "its code runs", "call": "its code runs", "observation": "the model writes"}


class TaskStory:
    """Use it as a context manager. On a terminal, a line below the story says what the task does now."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.last_id = "0"  # of the events told
        self._console = terminal(stderr=True)
        self._console.quiet = quiet
        self._status = self._console.status(Text("queued"))

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            self._status.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._status.stop()

    def tell(self, event: ServerEvent) -> None:
        if event.kind == "turn":
            self._tell_turn(event.data)
        else:
            for line in _LINES.get(event.kind, _other)(event):
                self._console.print(line, soft_wrap=True)
        waits = event.kind == "approval" and event.data["status"] == "wanted"
        doing = "it waits for a person" if waits else _DOING.get(event.kind, "the model writes")
        self._status.update(Text(doing))
        self.last_id = event.id or self.last_id

    def lost(self) -> None:
        """Say that the connection was lost."""
        self._status.update(Text("the server does not answer: trying again"))

    def _tell_turn(self, data: Data) -> None:
        """Its words, then its code."""
        text, code = data["text"], extract_code(data["text"])
        words = words_before_code(text)
        self._console.print(
            Text(f"turn {data['turn'] + 1}, {numbered(data['tokens'], 'token')}", "bold"), soft_wrap=True
        )
        if words.strip():
            self._console.print(Text(visible(words.strip())), soft_wrap=True)
        if code is not None:
            self._console.print(python_code(code, self._console), soft_wrap=not self._console.is_terminal)


def _call(event: ServerEvent) -> Iterator[Text]:
    data = event.data
    line = Text(f"  {data['api']}({arguments_text(data['arguments'])})", "cyan").append(
        f"  {data['seconds']:.2f} s", "dim"
    )
    yield line.append(f"  {visible(data['error'])}", "red") if data["error"] else line


def _observation(event: ServerEvent) -> Iterator[Text]:
    text = visible(event.data["text"].rstrip())
    if len(text) > _LONGEST_OUTPUT:
        text = f"{text[:_LONGEST_OUTPUT]}\n... {len(text) - _LONGEST_OUTPUT:,} more characters"
    yield Text(text, "dim" if event.data["outcome"] == "ok" else "red")


def _check(event: ServerEvent) -> Iterator[Text]:
    data = event.data
    if data["status"] == "called":
        yield from (Text("  check:", "dim").append_text(line) for line in _call(event))
        return
    result = "broken" if data["error"] else in_words(data["score"])
    yield Text(f"check: {result}, {numbered(data['calls'], 'call')}", "red" if data["error"] else "yellow")
    if data["output"].strip():
        yield Text(visible(data["output"].rstrip()), "dim")
    if data["error"]:
        yield Text(visible(data["error"]), "red")


def _skill(event: ServerEvent) -> Iterator[Text]:
    data = event.data
    version = f" v{data['version']}" if "version" in data else ""
    reason = f": {visible(data['reason'])}" if data.get("reason") else ""
    yield Text(f"skill {data['status']}: {data['name']}{version}{reason}", "magenta")


def _approval(event: ServerEvent) -> Iterator[Text]:
    data = event.data
    if data["status"] == "wanted":
        yield Text(f"{data['api']}({arguments_text(data['arguments'])}) waits for a person:", "yellow")
        if data.get("because"):
            yield Text(f"  {visible(data['because'])}", "yellow")
        for command in ("show", "approve", "refuse"):
            yield Text(f"  sage approvals {command} {data['id']}", "yellow")
    else:
        reason = f": {visible(data['reason'])}" if data.get("reason") else ""
        yield Text(f"{data['api']} was {data['status']} by {visible(data['decided_by'])}{reason}", "yellow")


def _done(event: ServerEvent) -> Iterator[Text]:
    data = event.data
    score = "" if data["score"] is None else f", {in_words(data['score'])}"
    counts = (("turns", "turn"), ("generated_tokens", "token"), ("calls", "call"))
    spent = ", ".join(numbered(data[field], noun) for field, noun in counts)
    if data.get("cost") is not None:
        spent += f", cost {data['cost']:.4g}"
    stop = f" ({data['stop_reason']})" if data["stop_reason"] not in (None, "completed", data["state"]) else ""
    yield Text(f"{data['state']}{stop}{score}: {spent}", "bold green" if data["state"] == "done" else "bold red")
    if data["failure"]:
        yield Text(visible(data["failure"]), "red")
    advice = data.get("what_to_do") or what_to_do(data["stop_reason"], data["score"])
    if data["stop_reason"] != Stop.COMPLETED and advice:
        yield Text(visible(advice))


def _remark(event: ServerEvent) -> Iterator[Text]:
    yield Text(visible(event.data["text"]), "yellow")


def _settled(event: ServerEvent) -> Iterator[Text]:
    found = "arrived" if event.data["arrived"] else "did not arrive"
    yield Text(f"{event.data['api']} {found}, as {visible(event.data['settled_by'])} found out", "yellow")


def _other(event: ServerEvent) -> Iterator[Text]:
    shown = {name: value for name, value in event.data.items() if name != "at"}
    yield Text(f"{event.kind}: {json.dumps(shown)}", "yellow")


_LINES: Mapping[str, Callable[[ServerEvent], Iterator[Text]]] = {
    "call": _call,
    "observation": _observation,
    "skill": _skill,
    "approval": _approval,
    "check": _check,
    "remark": _remark,
    "settled": _settled,
    "done": _done,
}


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
        return TaskExit.SUCCEEDED if task["score"] >= GOOD else TaskExit.SCORED_AS_FAILURE
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
