"""The warm process that sessions are forked from. Started with an empty environment, stdlib only.

Standard input is the control socket: the host sends first the seccomp program, then numbered requests with one
socket each, and receives for each its number with the pidfd of a fork, or with the errno of what failed.
"""

import builtins
import errno
import gc
import json
import os
import platform
import signal
import socket
import sys
import time
import warnings
from contextlib import suppress

from app.sandbox.child import code_runner, confine, standard_library
from app.sandbox.child.channel import HostChannel

_NOBODY = 65534
_REAP_SECONDS = 1.0


def main() -> None:
    """Serve until the host closes the control socket. Every session dies with this process."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    kept = standard_library.preload()
    standard_library.install()
    warnings.simplefilter("ignore")  # they contain paths of this machine, and no model reads them
    for name in ("exit", "quit"):  # usually defined by the `site` module, which is not loaded
        setattr(builtins, name, sys.exit)
    control = socket.socket(fileno=0)
    bpf = control.recv(1 << 16)
    _drop_root()
    sys.path.clear()
    sys.argv = [""]
    control.send(json.dumps({"python": platform.python_version(), "uid": os.getuid()}).encode())
    os.dup2(1, 2)  # until here it reported failures of the start
    control.settimeout(_REAP_SECONDS)
    gc.collect()
    gc.freeze()
    fd = _serve(control)
    if fd is not None:
        code_runner.serve(HostChannel(fd), bpf)
    del kept


def _serve(control: socket.socket) -> int | None:
    """Return the session's descriptor in a fork, and None in the zygote when the host has gone."""
    zygote = os.getpid()
    while True:
        _reap()
        try:
            number, fds, _flags, _address = socket.recv_fds(control, 64, 1)
        except TimeoutError:
            continue
        if not number:
            return None
        try:
            pid = _fork(fds)
        except OSError as error:
            _answer(control, number, error)
            continue
        if pid == 0:
            confine.keep_only(fds[0])
            confine.exit_with(zygote)
            control.detach()
            return confine.SESSION_FD
        _hand_over(control, number, pid)
        os.close(fds[0])


def _fork(fds: list[int]) -> int:
    """As os.fork. Closes the session's socket if there is no fork."""
    if not fds:
        raise OSError(errno.EMFILE, "no descriptor is left to receive the session's socket")
    try:
        return os.fork()
    except OSError:
        os.close(fds[0])
        raise


def _hand_over(control: socket.socket, number: bytes, pid: int) -> None:
    """Send the host the pidfd of a fork. Kills the fork if that fails: nobody else could."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        return _answer(control, number, error)
    try:
        socket.send_fds(control, [number], [pidfd])
    except OSError:
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)


def _answer(control: socket.socket, number: bytes, error: OSError) -> None:
    with suppress(OSError):  # the host's request will time out
        control.send(b"%s %d" % (number, error.errno or 0))


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _drop_root() -> None:
    """An additional layer without a user namespace; the filter does not depend on it."""
    if os.getuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        except PermissionError:
            pass
