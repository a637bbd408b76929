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
    for each in _causes(error):
        if (number := _errno(each)) in _LACKS:
            return f"the host has run out of {_LACKS[number]}"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


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
