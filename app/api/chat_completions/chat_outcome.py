"""What a task's end, or the state that it is in, is to the client of a chat."""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.agent.action import without_thoughts
from app.api.chat_completions.completion import Finish
from app.api.chat_completions.openai_errors import TaskEndError
from app.base.values import LIMITS, Json, Stop
from app.db import tables
from app.db.tables import TaskState

_DONE: Final = "Done."  # a task that asked for no answer
_APPROVE: Final = "it goes on once a person approves or refuses it (GET /v1/approvals?state=waiting)"


class Outcome(msgspec.Struct, frozen=True):
    """The answer as text, and whether a limit has cut the task short."""

    text: str
    finish: Finish = "stop"


def outcome_of(task: tables.Task, turns: Sequence[str]) -> Outcome:
    """Of a task that has ended. `turns` are what the model has written. Raises TaskEndError if there is no answer.

    A model that answers in words, without code, ends its task: that is the answer, without its thoughts.
    """
    if task.state is TaskState.DONE and task.stop is Stop.COMPLETED:
        return Outcome(_text(task.answer))
    words = without_thoughts(turns[-1]) if turns else ""
    if task.state is TaskState.DONE and task.stop is Stop.NO_CODE and words:
        return Outcome(words)
    if task.state is TaskState.DONE and task.stop in LIMITS:
        return Outcome(f"The task ended before it was done ({task.stop}).", "length")
    stopped = task.stop in (Stop.IN_DOUBT, Stop.NOTHING_DONE, Stop.CRASHED, Stop.CANCELLED)
    code = str(task.stop) if stopped else "failed"
    raise TaskEndError(f"the task is {task.state} ({code}){_reason(task)}", code, task.id)


def no_outcome(task: tables.Task, seconds: float) -> TaskEndError:
    """Of a task that has not ended, and that is waited for no longer."""
    if task.state is TaskState.WAITING:
        message = f"the task waits for an approval: {_APPROVE}, and its answer is at GET /v1/tasks/{task.id}"
        return TaskEndError(message, "waiting_for_approval", task.id)
    message = (
        f"the task has not ended within {seconds:g} s: it goes on, and its answer is at GET /v1/tasks/{task.id}"
    )
    return TaskEndError(message, "not_ended", task.id)


def _reason(task: tables.Task) -> str:
    return f": {task.failure}" if task.failure else f": GET /v1/tasks/{task.id} shows what it did"


def _text(answer: Json) -> str:
    if answer is None:
        return _DONE
    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
