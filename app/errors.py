"""Every failure we foresee. No HTTP here: `api/problem.py` is the one place that turns these into answers."""

from typing import ClassVar


class AppError(Exception):
    """A failure with a name. Its message is meant for the caller and says what to do; its cause is for the log."""

    status: ClassVar[int] = 500


class InvalidError(AppError):
    """The request cannot be carried out as it stands, now or later."""

    status = 400


class UnauthorizedError(AppError):
    """No key, or a key nobody knows."""

    status = 401


class ForbiddenError(AppError):
    """The key is good, but not for this."""

    status = 403


class NotFoundError(AppError):
    """The thing asked for does not exist, or belongs to another project."""

    status = 404


class ConflictError(AppError):
    """The request is sound, but not in the present state of things."""

    status = 409


class ApiDocumentError(InvalidError):
    """An OpenAPI document that cannot be fetched, parsed or turned into calls."""


class SettingError(AppError):
    """A setting is missing or wrong. The message names it."""


class DatabaseError(AppError):
    """The database refuses, or holds a schema this version does not know."""

    status = 503


class StorageError(AppError):
    """The disk does not take what must be kept: it is full, or not ours to write to."""

    status = 507


class SandboxError(AppError):
    """The sandbox itself broke. Code that merely fails inside it is an observation, not an error."""

    status = 502


class EngineError(AppError):
    """The engine could not answer: unreachable, overloaded, or it refused the request."""

    status = 503


class EngineRefusalError(EngineError):
    """The engine understood the request and says no: asking again would not help. `code` is its HTTP status."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


class AdapterError(AppError):
    """An adapter that cannot be served: it is missing, damaged, or made for another base."""

    status = 409


class ModelError(AppError):
    """A model directory that cannot be served: a file is missing or does not fit."""


class HostError(Exception):
    """Raised by a HostCall; the sandboxed code sees an exception of class `kind` with this message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
