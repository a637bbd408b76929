"""All expected errors. `app.web.problem` is the only place that turns them into HTTP responses."""

import re
from typing import ClassVar, Final

_DIRECTORIES: Final = re.compile(r"(?:(?<![\w:/.@])|(?<=\w:)(?!//)|(?<=file://))/+(?:[^\s/:,;()'\"]+/+)+")


class AppError(Exception):
    """An expected error. The message is for the caller, what is wrong and what to do; the cause is for the log."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1  # of a command that it ends
    names_files: ClassVar[bool] = False  # of this host: see `public_text`


class InvalidError(AppError):
    """The request is invalid, now and later."""

    status = 400


class UnauthorizedError(AppError):
    """The key is missing, unknown or revoked."""

    status = 401


class ForbiddenError(AppError):
    """The key is valid but lacks the permission."""

    status = 403


class NotFoundError(AppError):
    """The resource does not exist, or belongs to another project."""

    status = 404


class ConflictError(AppError):
    """The request is valid but conflicts with the current state."""

    status = 409


class LimitError(AppError):
    """A limit is reached. After `retry_after` seconds another attempt may succeed."""

    status = 429

    def __init__(self, message: str, *, name: str, value: float, setting: str, retry_after: float) -> None:
        super().__init__(message)
        self.name = name
        self.value = value
        self.setting = setting
        self.retry_after = retry_after


class ApiDocumentError(InvalidError):
    """An OpenAPI document cannot be fetched, parsed or turned into operations."""


class SettingError(AppError):
    """A setting is missing or invalid. The message names it."""


class WrongUsageError(SettingError):
    """A command was given what it cannot use."""

    exit_code = 2


class DatabaseError(AppError):
    """The database is unavailable, or its schema is unknown to this version."""

    status = 503
    names_files = True


class StorageError(AppError):
    """The disk is full, or not writable."""

    status = 507
    names_files = True


class ShortageError(AppError):
    """The host lacks what every task needs, such as open files, for now."""

    status = 503


class SandboxError(AppError):
    """The sandbox itself failed. Code that fails inside it is an observation, not an error."""

    status = 502
    names_files = True


class EngineError(AppError):
    """The engine is unreachable, overloaded, or refused the request."""

    status = 503
    names_files = True
    broken_answers = 0  # of a hosted model to this request, which it may have billed


class EngineRefusalError(EngineError):
    """The engine rejected the request, so retrying is pointless. `code` is its HTTP status."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


class AdapterError(AppError):
    """An adapter cannot be served: it is missing, damaged, or trained on another base model."""

    status = 409
    names_files = True


class UnreadableAdapterError(AdapterError):
    """The machine does not find an adapter's files, or cannot read them, for now or until somebody mends it. They
    may be sound.
    """


class ModelError(AppError):
    """A model directory cannot be served: a file is missing or does not fit."""

    names_files = True


class ModelHashError(ModelError):
    """A downloaded or copied file is not the one that the catalogue names."""


class ModelDownloadError(ModelError):
    """A model could not be downloaded, or only in part. The next attempt goes on where this one ended."""


class GgufError(ModelError):
    """A GGUF file is damaged, or of a kind that cannot be converted."""


class ModelTokenizerError(ModelError):
    """A tokenizer does not fit the weights, or cannot represent all text."""


class ChatTemplateError(ModelError):
    """A chat template rewrites earlier messages, or rejects the roles of an agent."""


class ModelMemoryError(ModelError):
    """A model needs more memory than there is."""


class WorldError(AppError):
    """A world of an environment could not be set up or verified: the rollout in it says nothing."""


class StagingError(AppError):
    """A staging server cannot be used as it is: it could not be reset."""

    status = 502


class HostError(Exception):
    """Raised by a HostCall. The sandboxed code sees an exception of class `kind` with this message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class NoConnectionError(HostError):
    """No connection to the server of an API. Nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__("ApiError", message)


INTERNAL_ERROR = "internal error: the server's log has the details"


def public_text(error: AppError) -> str:
    """The message for who has only a key: of files of this host their names alone. The log has where they are.

    >>> public_text(AdapterError("no adapter in /srv/adapters/0f3a: http://engine:8000/v1/models lacks it"))
    'no adapter in 0f3a: http://engine:8000/v1/models lacks it'
    >>> public_text(InvalidError("GET /pets/{id}/toys has no parameters"))
    'GET /pets/{id}/toys has no parameters'
    """
    return _DIRECTORIES.sub("", str(error)) if error.names_files else str(error)


def first_line(error: BaseException) -> str:
    """The first line of the error's message, for a log or another message; without one, its kind in words.

    >>> first_line(ValueError("odd")), first_line(ConnectionResetError()), first_line(TimeoutError())
    ('odd', 'connection reset', 'timeout')
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return str(error).strip().partition("\n")[0] or words.removesuffix("error").strip() or "error"
