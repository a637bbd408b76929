"""Why a run failed, in the words that stand on its row: the name of an error, and what to do."""

import errno
from collections.abc import Iterator
from pathlib import Path

from app.errors import AppError, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")  # torch and safetensors tell it in text
_LONGEST = 2000  # characters


def failure_of(error: BaseException, directory: Path) -> str:
    """`directory`: of the run.

    >>> failure_of(ValueError("odd"), Path("runs/7"))
    'ValueError: odd (a defect: the whole story is at the end of runs/7/log)'
    """
    chain = list(_chain(error))
    said = f"{type(chain[0]).__name__}: {' '.join(str(chain[0]).split())}"[:_LONGEST]
    if isinstance(chain[0], AppError):
        return said
    for cause in filter(_is_full, chain):
        return f"{StorageError.__name__}: no space is left for {_place(cause, directory)}: make some, then retry"
    if any(map(_is_out_of_memory, chain)):
        return f"{said} (train with a lower micro_batch_tokens, or with gradient_checkpointing=true)"
    if isinstance(chain[0], OSError):
        return said
    return f"{said} (a defect: the whole story is at the end of {directory / 'log'})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, without the group it may come in, then what caused it."""
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
    """torch's own error is known by its name, because where torch is missing a failure is told as well."""
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return named or "can't allocate memory" in str(error)  # as torch says it without a GPU


def _place(error: BaseException, directory: Path) -> str:
    named = getattr(error, "filename", None)
    return str(Path(named).parent if isinstance(named, str) else directory)
