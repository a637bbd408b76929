"""What a host runs out of. Such an error says nothing about the task that met it."""

import errno
import os
import socket
from collections.abc import Iterator

_LACKS = {
    errno.EMFILE: "open files of a process: raise its limit (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "open files of the whole system: raise fs.file-max",
    errno.ENOMEM: "memory: add some, or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.EAGAIN: "processes: raise their limit (pids.max, ulimit -u), or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "disk space: a quota is used up",
}
_NO_THREAD = "can't start new thread"  # a RuntimeError of CPython for EAGAIN


def shortage_of(error: BaseException) -> str | None:
    """What the host lacks, and what to do, if that is what the error, or one that led to it, says. Else None."""
    for each, is_cause in _causes(error):
        number = _errno(each)
        if number in _LACKS and (is_cause or number != errno.EAGAIN):  # which a socket without news raises, too
            return f"the host has run out of {_LACKS[number]}"
    return None


def _causes(error: BaseException | None, is_cause: bool = True) -> Iterator[tuple[BaseException, bool]]:
    """Errors that led to this one, and whether as its cause: httpcore hides that by `from None`."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error, is_cause
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each, is_cause)
        is_cause = is_cause and error.__cause__ is not None
        error = error.__cause__ or error.__context__


def _errno(error: BaseException) -> int | None:
    if isinstance(error, socket.gaierror):
        return _hidden_errno()
    if isinstance(error, OSError):
        return error.errno
    return errno.EAGAIN if isinstance(error, RuntimeError) and str(error) == _NO_THREAD else None


def _hidden_errno() -> int | None:
    """A look-up of a name does not tell that it could not open its files."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno
    return None
