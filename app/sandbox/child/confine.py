"""Confines a new fork: it cannot open files, start processes or map executable memory."""

import ctypes
import os
import resource
import signal

SESSION_FD = 3
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_LIFETIME_CPU_SECONDS = 3600  # of a whole session; the host counts each run

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """struct sock_fprog of <linux/filter.h>."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def keep_only(session_fd: int) -> None:
    """Close all files but the session's socket; standard streams are /dev/null."""
    os.dup2(session_fd, SESSION_FD)
    os.dup2(1, 0)
    os.closerange(SESSION_FD + 1, 1024)


def exit_with(parent: int) -> None:
    """Be killed when the zygote dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def confine(bpf: bytes, address_space: int) -> None:
    """Set the resource limits and install the filter. Raises OSError where the kernel refuses."""
    for kind, limit in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_CPU, _LIFETIME_CPU_SECONDS),
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    program = _Program(len(bpf) // 8, bpf)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _prctl(option: int, argument: int, pointer: int = 0) -> None:
    arguments = [ctypes.c_ulong(value) for value in (argument, pointer, 0, 0)]
    if _libc.prctl(option, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
