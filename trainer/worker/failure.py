"""Describe why a run failed, for its row: the name of the error, and what to do."""

import errno
from collections.abc import Iterator
from pathlib import Path

from app.errors import AppError, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = (
    "No space left on device",
    "Disk quota exceeded",
)  # of torch and safetensors
_MAX_LENGTH = 2000  # characters


def describe_failure(error: BaseException, directory: Path) -> str:
    """Describe an error in one line; `directory` is the run's.

    >>> describe_failure(ValueError("odd"), Path("runs/7"))
    'ValueError: odd (a defect: see the end of runs/7/log)'
    """
    chain = list(_chain(error))
    described = f"{type(chain[0]).__name__}: {' '.join(str(chain[0]).split())}"[:_MAX_LENGTH]
    if isinstance(chain[0], AppError):
        return described
    for cause in filter(_is_full, chain):
        return f"{StorageError.__name__}: no space is left for {_place(cause, directory)}: free some, then retry"
    if any(map(_is_out_of_memory, chain)):
        return f"{described} (set a lower micro_batch_tokens, or gradient_checkpointing=true)"
    if isinstance(chain[0], OSError):
        return described
    return f"{described} (a defect: see the end of {directory / 'log'})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, unwrapped from exception groups, then its causes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    yield error
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from _chain(cause)


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def _is_out_of_memory(error: BaseException) -> bool:
    """Check torch's error by name: failures are also described where torch is not installed."""
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return named or "can't allocate memory" in str(error)  # torch's message on a CPU


def _place(error: BaseException, directory: Path) -> str:
    named = getattr(error, "filename", None)
    return str(Path(named).parent if isinstance(named, str) else directory)
