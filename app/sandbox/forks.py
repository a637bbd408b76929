"""Requests forks of the warm process. Each request is numbered, so that a late answer harms no other."""

import asyncio
import errno
import os
import socket
import time
from itertools import count

from app.errors import SandboxError
from app.sandbox.fork import Fork

_ADVICE = {
    errno.EAGAIN: "raise the limit of processes (pids.max, ulimit -u), or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.ENOMEM: "add memory, or lower SAGE_MAX_TASKS_IN_FLIGHT",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class ForkRequests:
    """The host's end of the control socket. Any number of requests may wait at the same time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Fork]] = {}
        self._owed = 0  # answers, also of requests that no longer wait
        self._unheard = 0.0  # since when, if any is owed
        self.open = True  # the other end lives, as far as is known
        asyncio.get_running_loop().add_reader(control, self._receive)

    def silent_seconds(self) -> float:
        """Seconds since the warm process last answered, if it owes an answer."""
        return time.monotonic() - self._unheard if self._owed else 0.0

    async def fork(self, stream: socket.socket, seconds: float) -> Fork:
        """A new process with this socket. Raises SandboxError if this request fails, EOFError if all do."""
        number = next(self._numbers)
        self._send(number, stream)
        future: asyncio.Future[Fork] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await asyncio.wait([future], timeout=seconds)
        except asyncio.CancelledError:
            _abandon(future)
            raise
        finally:
            del self._waiting[number]
        if not future.done():
            raise SandboxError(
                f"a session did not start within {seconds:g} s: the machine is overloaded. "
                "Add CPU cores, or lower SAGE_MAX_TASKS_IN_FLIGHT"
            )
        return future.result()

    def close(self) -> None:
        """Close the socket. Requests that wait raise EOFError."""
        if self.open:
            self.open = False
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError("the warm process is gone"))

    def _send(self, number: int, stream: socket.socket) -> None:
        if not self.open:
            raise EOFError("the warm process is gone")
        try:
            socket.send_fds(self._control, [str(number).encode()], [stream.fileno()])
        except BlockingIOError as error:
            raise SandboxError("too many sessions wait to be started: the machine is overloaded") from error
        except OSError as error:
            self.close()
            raise EOFError("the warm process is gone") from error
        self._unheard = self._unheard if self._owed else time.monotonic()
        self._owed += 1

    def _receive(self) -> None:
        try:
            message, fds, _flags, _address = socket.recv_fds(self._control, 1 << 12, 1)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message:
            return self.close()
        self._owed -= 1
        self._unheard = time.monotonic()
        number, _, failure = message.decode().partition(" ")
        self._settle(self._waiting.get(int(number)), fds, failure)

    def _settle(self, future: asyncio.Future[Fork] | None, fds: list[int], failure: str) -> None:
        """Hand a new process to the request that waits for it; kill the process of one that does not any more."""
        try:
            fork = _opened(fds, failure)
        except SandboxError as error:
            if future is not None and not future.done():
                future.set_exception(error)
            return
        if future is None or future.done():
            fork.close()
        else:
            future.set_result(fork)


def _abandon(future: asyncio.Future[Fork]) -> None:
    """Kill the process that came for a request as it was cancelled."""
    if future.done() and future.exception() is None:
        future.result().close()


def _opened(fds: list[int], failure: str) -> Fork:
    if not fds:
        code = int(failure or errno.EMFILE)  # without a failure, this process could not take the descriptor
        advice = _ADVICE.get(code, "see the system's log")
        cause = OSError(code, os.strerror(code))  # in the warm process
        raise SandboxError(f"a session could not be started: {cause.strerror} ({advice})") from cause
    try:
        return Fork(fds[0])
    except OSError as error:
        os.close(fds[0])
        raise SandboxError(f"a session could not be started: {error}") from error
