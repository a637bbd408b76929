"""Errors as clients of OpenAI's API expect them."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

import msgspec
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec

from app.base.errors import AppError, InvalidError
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


def _type_of(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


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
        detail = ErrorDetail(message=problem.detail, type=_type_of(problem.status), param=param, code=code)
        again = problem.status == HTTPStatus.TOO_MANY_REQUESTS or problem.status >= 500
        headers = {**response.headers, **({} if again else _NO_RETRY)}
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
