"""Processes that end together with their parent, however that ends."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if hasattr(os, "pidfd_open") else None  # of Linux; a fork can call it at once


def end_with_parent() -> None:
    """Have Linux kill this process when its parent dies; also as the `preexec_fn` of a child.

    On other systems nothing happens: the process must poll its parent.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_with_parent(parent: int) -> None:
    """As `end_with_parent`, and exit if the parent has ended already."""
    end_with_parent()
    if os.getppid() != parent:
        sys.exit("the parent process has ended")
