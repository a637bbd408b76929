"""End a process together with its parent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def exit_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent dies. On other systems the caller must poll its parent."""
    if hasattr(os, "pidfd_open"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")  # before prctl
