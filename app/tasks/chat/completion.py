"""Chats as clients of OpenAI's API know them: the request, of which the last message is a task's instruction,
the completion, errors, and what a task's state and end are to such a client. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec

from app.agent.action import without_thoughts
from app.base.errors import AppError, InvalidError
from app.base.text import shortened
from app.base.values import LIMITS, Json, Stop
from app.db import tables
from app.db.tables import TaskState
from app.tasks.requests import TaskRequest
from app.web.problem import COMMON_PROBLEMS, HANDLERS, Problem

TASK_HEADER: Final = "X-Task-Id"
TASK_STATE: Final = (
    "task_id"  # in the state of a request that must not be repeated, because it has become this task
)
_NO_RETRY: Final = {"x-should-retry": "false"}  # the official clients obey it
_CODES: Final = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.FORBIDDEN: "insufficient_permissions",
    HTTPStatus.NOT_FOUND: "model_not_found",
    HTTPStatus.CONFLICT: "idempotency_conflict",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
}
_MOST: Final = 12_000  # characters of a conversation that the agent reads
_MOST_OF_ONE: Final = 4_000  # of its messages
_MOST_OF_AN_OUTPUT: Final = 1_000  # characters of an output that is shown
_MOST_OF_A_VALUE: Final = 80
_RULES: Final = ("system", "developer")
_PARAMS: Final = {"instruction": "messages", "principal": "user", "scenario": "metadata"}
_DONE: Final = "Done."  # a task that asked for no answer
_APPROVE: Final = "it goes on once a person approves or refuses it (GET /v1/approvals?state=waiting)"


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is for programs. `param` is the field of the request that is wrong, if one is."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDetail


class UnsupportedError(InvalidError):
    """The request asks for what the agent cannot do."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class TaskEndError(AppError):
    """The task was accepted, and there is no answer. Asking again would do its work twice."""

    status: ClassVar[int] = 422

    def __init__(self, message: str, code: str, task_id: UUID) -> None:
        super().__init__(message)
        self.code = code
        self.task_id = task_id

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetail(message=str(self), type="task_error", code=self.code))


def openai_errors(*statuses: int) -> dict[int, ResponseSpec]:
    """The error responses that a handler declares in the OpenAPI document."""
    return {
        status: ResponseSpec(ErrorBody, description=HTTPStatus(status).phrase, generate_examples=False)
        for status in sorted({*statuses, *COMMON_PROBLEMS})
    }


_Handler: TypeAlias = Callable[[Any, Any], Response[Any]]


def _shaped(handler: _Handler) -> _Handler:
    """The same answer in the other form. What is wrong will be wrong again, unless a limit or the server is.

    Of a request that names its task in its state, also that must not be repeated.
    """

    def answer(request: Any, error: Any) -> Response[ErrorBody]:
        response = handler(request, error)
        problem: Problem = response.content
        if task_id := request.state.get(TASK_STATE):
            message = f"no answer came ({problem.error}): the task may go on, and GET /v1/tasks/{task_id} shows it"
            return _answer_task_end(request, TaskEndError(message, "not_ended", task_id))
        param = error.param if isinstance(error, UnsupportedError) else problem.field
        code = "unsupported" if isinstance(error, UnsupportedError) else _CODES.get(HTTPStatus(problem.status))
        limited, broken = problem.status == HTTPStatus.TOO_MANY_REQUESTS, problem.status >= 500
        kind = "rate_limit_error" if limited else "server_error" if broken else "invalid_request_error"
        detail = ErrorDetail(message=problem.detail, type=kind, param=param, code=code)
        headers = {**response.headers, **({} if limited or broken else _NO_RETRY)}
        return Response(ErrorBody(detail), status_code=problem.status, headers=headers)

    return answer


def _answer_task_end(_: Any, error: TaskEndError) -> Response[ErrorBody]:
    headers = {TASK_HEADER: str(error.task_id), **_NO_RETRY}
    return Response(error.body, status_code=error.status, headers=headers)


OPENAI_HANDLERS: dict[Any, _Handler] = {
    **{kind: _shaped(handler) for kind, handler in HANDLERS.items()},
    TaskEndError: _answer_task_end,
}
"""Of the routes that OpenAI's API has."""


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """Only parts of the type `text` are understood."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is text, or a list of parts that are text."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`include_usage`: the chunk before the last line has the numbers of tokens."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the name of a project. The last message, of the user, is the instruction; the agent reads what
    was said before. Fields that are not named here, such as `temperature`, are ignored.
    """

    model: str
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    user: str | None = None  #: the task's principal
    safety_identifier: str | None = None  #: the principal, if `user` is missing
    metadata: dict[str, str] | None = None  #: its `scenario` is the task's
    n: int | None = None
    tools: list[Json] | None = None
    functions: list[Json] | None = None
    response_format: dict[str, Json] | None = None
    modalities: list[str] | None = None
    logprobs: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def task(self) -> TaskRequest:
        """Raises UnsupportedError for what the agent cannot do, and for texts that no task may have."""
        for param, reason in _unsupported(self):
            raise UnsupportedError(f"{param}: {reason}", param)
        *before, last = self.messages
        fields = {
            "project": self.model,
            "instruction": last.text,
            "conversation": conversation_of(before),
            "principal": self.user or self.safety_identifier or "",
            "scenario": (self.metadata or {}).get("scenario"),
        }
        try:
            return msgspec.convert(fields, TaskRequest)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at `$.")
            param = _PARAMS.get(place.rstrip("`"), "messages")
            raise UnsupportedError(f"{param}: {reason}", param) from error


def conversation_of(messages: Sequence[ChatMessage]) -> str:
    """The messages as lines such as `user: ...`: all rules of the system, and the newest others that fit.

    >>> conversation_of([ChatMessage(role="system", content="Be brief"), ChatMessage(role="user", content="Hi")])
    'system: Be brief\\nuser: Hi'
    """
    lines = [f"{each.role}: {shortened(each.text, _MOST_OF_ONE)}" for each in messages]
    order = sorted(range(len(lines)), key=lambda place: (messages[place].role not in _RULES, -place))
    kept: set[int] = set()
    left = _MOST
    for place in order:
        left -= len(lines[place]) + 1
        if left < 0:
            break
        kept.add(place)
    shown = [line for place, line in enumerate(lines) if place in kept]
    missing = len(lines) - len(shown)
    return "\n".join([*([f"[{missing} messages are left out]"] if missing else []), *shown])


def _unsupported(request: ChatRequest) -> Iterator[tuple[str, str]]:
    """The fields that ask for what the agent cannot do, each with the reason."""
    if request.tools or request.functions:
        what = "the agent calls the APIs of its project, and none of the client: register them as APIs"
        yield "tools" if request.tools else "functions", what
    if request.n not in (None, 1):
        yield "n", "a task is done once: send 1, or nothing"
    if (request.response_format or {}).get("type", "text") != "text":
        yield "response_format", "the answer is text: say in the message which form it should have"
    if request.modalities not in (None, ["text"]):
        yield "modalities", "the answer is text"
    if request.logprobs:
        yield (
            "logprobs",
            "an answer has none; GET /v1/tasks/{task_id}/trajectory?tokens=true has those of the code",
        )
    yield from _unreadable(request.messages)


def _unreadable(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, str]]:
    for place, each in enumerate(messages):
        parts = each.content if isinstance(each.content, list) else []
        if kinds := sorted({part.type for part in parts} - {"text"}):
            yield f"messages[{place}].content", f"only text is understood, not {', '.join(kinds)}"
    if messages[-1].role != "user":
        yield "messages", "the last one has to be the user's: it is the instruction"


Finish = Literal["stop", "length"]


class ChatUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the model in all turns of the task. What one turn has read counts once, though later ones go on
    from it. A hosted model has read the whole prompt in each turn, which its provider charges.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, turns: Iterable[Mapping[str, Json]]) -> "ChatUsage":
        """Of the data of the events of all turns."""
        data = list(turns)
        read, written = (sum(each.get(name, 0) for each in data) for name in ("context_tokens", "tokens"))
        return cls(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`length`: a limit ended the task before it was done."""

    message: AnswerMessage
    finish_reason: Finish
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is `chatcmpl-` and the id of the task."""

    id: str
    created: int  #: seconds since 1970
    model: str
    choices: list[Choice]
    usage: ChatUsage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`reasoning_content` is what the agent does until it has the answer."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    delta: Delta
    finish_reason: Finish | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


def head_of(task: tables.Task, model: str) -> dict[str, Any]:
    """The fields with which a completion and each of its chunks begin. `model` is as the client named it."""
    return {"id": f"chatcmpl-{task.id}", "created": int(task.created_at.timestamp()), "model": model}


class Outcome(msgspec.Struct, frozen=True):
    """The answer as text, and whether a limit has cut the task short."""

    text: str
    finish: Finish = "stop"


def outcome_of(task: tables.Task, turns: Sequence[str]) -> Outcome:
    """Of a task that has ended. `turns` are what the model has written. Raises TaskEndError if there is no answer.

    A model that answers in words, without code, ends its task: that is the answer, without its thoughts.
    """
    if task.state is TaskState.DONE and task.stop is Stop.COMPLETED:
        text = task.answer if isinstance(task.answer, str) else msgspec.json.encode(task.answer).decode()
        return Outcome(_DONE if task.answer is None else text)
    words = without_thoughts(turns[-1]) if turns else ""
    if task.state is TaskState.DONE and task.stop is Stop.NO_CODE and words:
        return Outcome(words)
    if task.state is TaskState.DONE and task.stop in LIMITS:
        return Outcome(f"The task ended before it was done ({task.stop}).", "length")
    stopped = task.stop in (Stop.IN_DOUBT, Stop.NOTHING_DONE, Stop.CRASHED, Stop.CANCELLED)
    code = str(task.stop) if stopped else "failed"
    reason = task.failure or f"GET /v1/tasks/{task.id} shows what it did"
    raise TaskEndError(f"the task is {task.state} ({code}): {reason}", code, task.id)


def no_outcome(task: tables.Task, seconds: float) -> TaskEndError:
    """Of a task that has not ended, and that is waited for no longer."""
    if task.state is TaskState.WAITING:
        message = f"the task waits for an approval: {_APPROVE}, and its answer is at GET /v1/tasks/{task.id}"
        return TaskEndError(message, "waiting_for_approval", task.id)
    message = (
        f"the task has not ended within {seconds:g} s: it goes on, and its answer is at GET /v1/tasks/{task.id}"
    )
    return TaskEndError(message, "not_ended", task.id)


def progress(kind: str, data: Mapping[str, Json]) -> str:
    """Lines about an event of a task; "" for one that says nothing to people.

    >>> progress("call", {"api": "mail.send", "arguments": {"to": "iris"}, "error": None})
    "mail.send(to='iris')\\n"
    """
    match kind:
        case "turn":
            return f"{data['text'].rstrip()}\n"
        case "call":
            given = ", ".join(
                f"{name}={shortened(repr(each), _MOST_OF_A_VALUE)}" for name, each in data["arguments"].items()
            )
            failed = f" raised {shortened(data['error'], _MOST_OF_AN_OUTPUT)}" if data.get("error") else ""
            return f"{data['api']}({given}){failed}\n"
        case "observation":
            return f"{shortened(data['text'].rstrip(), _MOST_OF_AN_OUTPUT)}\n"
        case "skill" if data["status"] in ("offered", "used", "written"):
            return f"skill {data['status']}: {data['name']}\n"
        case "approval" if data.get("status") == "wanted":
            because = f"{data['because']}\n" if data.get("because") else ""
            return f"waits for a person's approval of {data.get('api', 'a call')}\n{because}"
        case "approval":
            return f"{data.get('api', 'the call')} is {data.get('status')}\n"
        case "remark":
            return f"{data['text']}\n"
    return ""
