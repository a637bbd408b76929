"""Turns errors into HTTP responses (RFC 9457). No code below the API knows about responses."""

from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ExceptionHandlersMap
from msgspec import UNSET, UnsetType
from psycopg.errors import DiskFull
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from app.base.errors import (
    AppError,
    ConflictError,
    DatabaseError,
    ForbiddenError,
    InvalidError,
    LimitError,
    NotFoundError,
    UnauthorizedError,
    first_line,
    public_text,
)
from app.db.database import is_lost_connection

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
_KINDS = (InvalidError, UnauthorizedError, ForbiddenError, NotFoundError, ConflictError, LimitError)
_NAMES = {kind.status: kind.__name__ for kind in _KINDS}

COMMON_PROBLEMS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)

_DOWN = "the database is unavailable; try again in a moment"
_FULL = "the disk of the database is full: nothing can be stored until it has space"
_BODY = "data"  # the handler parameter that holds the request body
_CLEARER = {  # than the messages of the framework and its JSON parser
    repr(_BODY): "send a JSON body",
    "Input data was truncated": "the body is truncated JSON",
}
_HUNG_UP = "client disconnected prematurely"  # says the framework, with status 500
_PUBLIC_NAMES = {"in_state": "state"}  # the framework reserves the parameter name `state`

AnyRequest = Request[Any, Any, Any]


class ReachedLimit(msgspec.Struct, frozen=True):
    """The limit that a request with status 429 reached, and the setting that changes it, if one does."""

    name: str
    value: float
    setting: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error response. `field` is the invalid part of the request, if known."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    field: str | None = None
    limit: ReachedLimit | UnsetType = UNSET


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The error responses that a handler declares in the OpenAPI document, with those that any may return."""
    return {
        status: ResponseSpec(
            Problem, description=HTTPStatus(status).phrase, generate_examples=False, media_type=MEDIA_TYPE
        )
        for status in sorted({*statuses, *COMMON_PROBLEMS})
    }


READ = problems(400, 401, 403, 404)
"""Of a handler that finds what it is asked about."""
CHANGE = problems(400, 401, 403, 404, 409)
"""Of one that may find it in a state in which it cannot be changed."""


def error_name(status: HTTPStatus) -> str:
    """
    >>> error_name(HTTPStatus.NOT_FOUND), error_name(HTTPStatus.METHOD_NOT_ALLOWED)
    ('NotFoundError', 'MethodNotAllowedError')
    """
    return _NAMES.get(status, "".join(status.phrase.title().split()) + "Error")


def answer(
    status: int,
    error: str,
    detail: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
    limit: ReachedLimit | UnsetType = UNSET,
) -> Response[Problem]:
    title = HTTPStatus(status).phrase
    body = Problem(title=title, status=int(status), detail=detail, error=error, field=field, limit=limit)
    return Response(body, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def _answer_app_error(_: AnyRequest, error: AppError) -> Response[Problem]:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else None
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.names_files:
        log.error("request failed", error=type(error).__name__, detail=str(error), cause=repr(error.__cause__))
    return answer(error.status, type(error).__name__, public_text(error), headers=headers)


def _answer_limit_error(_: AnyRequest, error: LimitError) -> Response[Problem]:
    headers = {"Retry-After": str(max(1, ceil(error.retry_after)))}
    limit = ReachedLimit(error.name, error.value, error.setting)
    return answer(error.status, LimitError.__name__, str(error), headers=headers, limit=limit)


def _answer_http_exception(request: AnyRequest, error: HTTPException) -> Response[Problem]:
    """Errors found by the framework before the handler ran: route, method, body or parameter."""
    status = HTTPStatus(error.status_code)
    if error.detail == _HUNG_UP:
        return answer(400, InvalidError.__name__, "the client hung up before it had sent its request")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _answer_unexpected(request, error)
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        methods = ", ".join(sorted((error.headers or {}).get("allow", "").split(", ")))  # always in one order
        refused = f"{request.url.path} does not know {request.method}: use {methods}"
        return answer(status, error_name(status), refused, headers={"Allow": methods})
    name = error_name(status)
    first = next(iter(error.extra), None) if isinstance(error.extra, list) else None
    if not isinstance(first, dict):
        message = _CLEARER.get(error.detail, error.detail)
        return answer(status, name, message or status.phrase, headers=error.headers)
    key, message = first.get("key"), str(first["message"])
    if key == _BODY:
        return answer(status, name, _CLEARER.get(message, message), headers=error.headers)
    field = _PUBLIC_NAMES.get(key, key) if isinstance(key, str) else None
    return answer(status, name, f"{field}: {message}" if field else message, field=field, headers=error.headers)


def _answer_invalid_utf8(_: AnyRequest, error: UnicodeDecodeError) -> Response[Problem]:
    """The framework's JSON parser does not catch this one."""
    return answer(400, InvalidError.__name__, f"the request is not valid UTF-8: {error.reason}")


def _answer_invalid_value(_: AnyRequest, error: DataError) -> Response[Problem]:
    return answer(400, InvalidError.__name__, f"a value cannot be stored: {error.orig}")


def _answer_database_down(_: AnyRequest, error: OperationalError) -> Response[Problem]:
    log.error("the database is unavailable", cause=str(error.orig))
    return answer(503, DatabaseError.__name__, _FULL if isinstance(error.orig, DiskFull) else _DOWN)


def _answer_no_connection(_: AnyRequest, error: NoConnectionError) -> Response[Problem]:
    log.error("all database connections are in use", cause=str(error))
    return answer(503, DatabaseError.__name__, "all database connections are in use; try again in a moment")


def _answer_unexpected(request: AnyRequest, error: Exception) -> Response[Problem]:
    """The last resort: details go to the log, never to the caller."""
    if is_lost_connection(error):
        log.error("the connection to the database was lost", cause=first_line(error))
        return answer(503, DatabaseError.__name__, _DOWN)
    log.error("unexpected error", method=request.method, path=request.url.path, exc_info=error)
    return answer(500, "InternalError", "internal error; see the server's log")


def problem_for(request: Any, error: Exception) -> Problem:
    """The body of the response to an error."""
    kind = next(each for each in type(error).__mro__ if each in HANDLERS)
    found: Problem = HANDLERS[kind](request, error).content
    return found


HANDLERS: ExceptionHandlersMap = {
    AppError: _answer_app_error,
    LimitError: _answer_limit_error,
    HTTPException: _answer_http_exception,
    UnicodeDecodeError: _answer_invalid_utf8,
    DataError: _answer_invalid_value,
    OperationalError: _answer_database_down,
    NoConnectionError: _answer_no_connection,
    Exception: _answer_unexpected,
}
