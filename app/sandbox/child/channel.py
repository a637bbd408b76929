"""The sandbox's end of its only socket: calls the host, one call at a time. With the soft CPU limit, which must
not interrupt a frame, and the whole answers of APIs.
"""

import base64
import builtins
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from app.sandbox.wire import LENGTH_BYTES, encode_arguments, pack


class Headers(dict[str, str]):
    """Headers by lower-case name. A look-up takes any case."""

    def __getitem__(self, name: str, /) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object, /) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None, /) -> Any:
        return super().get(name.lower(), default)


class Response:
    """`value` is what the call alone returns; `status` is None if the host answered it."""

    __slots__ = ("headers", "status", "value")

    def __init__(self, value: Any, status: int | None, headers: dict[str, str]) -> None:
        self.value = value
        self.status = status
        self.headers = Headers(headers)

    def __repr__(self) -> str:
        return f"<Response {self.status}>"


class CpuLimit:
    """A timer of the process's CPU time. Never raises in the middle of a message to the host."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._armed = False
        self._masked = False
        self._pending = False
        self.raised: TimeoutError | None = None
        signal.signal(signal.SIGVTALRM, self._on_timer)

    def arm(self, seconds: float | None = None) -> None:
        """Restart the timer. It raises repeatedly, for code that catches everything."""
        seconds = seconds or self.seconds
        self.raised, self._pending, self._armed = None, False, True
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds / 4)

    def spend(self, seconds: float) -> None:
        """Take time off what is left, since another process used it for this one."""
        left, interval = signal.getitimer(signal.ITIMER_VIRTUAL)
        if self._armed:
            signal.setitimer(signal.ITIMER_VIRTUAL, max(left - seconds, 0.001), interval)

    def disarm(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the exception to the end of this block."""
        outer, self._masked = self._masked, True
        try:
            yield
        finally:
            self._masked = outer
        if self._pending and not outer:
            self._raise()

    def _on_timer(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._armed:
            return
        if self._masked:
            self._pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        self._pending = False
        if self._armed:
            self.raised = TimeoutError(f"the code used more than {self.seconds:g} s of CPU time")
            raise self.raised


_loads = json.loads
_decode64 = base64.b64decode
_read, _write, _leave = os.read, os.write, os._exit
API_ERROR = "ApiError"  # a class that all code knows by this name
SLACK = 1 << 17  # of a frame around its value, and one chunk of output


class HostChannel:
    def __init__(self, fd: int) -> None:
        self.run = ""  # the number that the host gave the run: every message of the run bears it
        self.latest: tuple[str, Any] = ("", None)  # the API that was called last, and the value of its answer
        self._fd = fd
        self.frame_bytes = 1 << 20  # of the largest value that a message may carry
        self._kinds: dict[tuple[str, type[BaseException]], type[BaseException]] = {}

    def limit(self, frame_bytes: int, cpu: CpuLimit, before_call: Callable[[], None]) -> None:
        self.frame_bytes = frame_bytes
        self._cpu = cpu
        self._before_call = before_call

    def send(self, kind: str, *fields: Any) -> None:
        """Raises ValueError if the message is too large for a frame."""
        self._write(pack([kind, self.run, *fields], self.frame_bytes + SLACK))

    def receive(self) -> Any:
        """The next message. Exits when the host has gone."""
        length = int.from_bytes(self._read_exactly(LENGTH_BYTES), "big")
        return _loads(self._read_exactly(length))

    def call(self, api: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of the answer. Raises what `answer` raises."""
        [value] = self.answer(api, args, kwargs)
        self.latest = api, value
        return value

    def answer(self, api: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, whole: bool = False) -> list[Any]:
        """The host's answer: [value], or [value, status, headers, next page] of a `whole` one.

        Raises the host's exception, and TypeError or ValueError for invalid arguments.
        """
        try:
            values = encode_arguments(args, kwargs, self.frame_bytes)
            frame = pack(["call", self.run, api, *values, whole], self.frame_bytes + SLACK)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"cannot pass the arguments of {api}: {reason(error)}") from None
        kind, value, *about = self.ask(frame)
        if kind == "raise":
            raise self._host_error(api, value, *about)
        return [_decode64(value) if kind == "bytes" else value, *about]

    def _host_error(
        self, api: str, kind: str, message: str, response: dict[str, Any] | None = None
    ) -> BaseException:
        """The host's exception. An ApiError has `operation`, and `status`, `headers` and `body` of a response."""
        error = self.exception(kind, message)
        if kind == API_ERROR:
            known = {"status": None, "headers": {}, "body": None} | (response or {})
            known["headers"] = Headers(known["headers"])
            vars(error).update(known, operation=api)
        return error

    def ask(self, frame: bytes) -> Any:
        """The host's answer to a frame. The output so far goes first."""
        with self._cpu.deferred():
            self._before_call()
            self._write(frame)
            return self.receive()

    def exception(self, kind: str, message: str) -> BaseException:
        """An exception of this class, which is made if Python has none."""
        known = getattr(builtins, kind, None)
        if isinstance(known, type) and issubclass(known, BaseException):
            try:
                return known(message)
            except TypeError:  # such as UnicodeDecodeError, which needs more than a message
                pass
        return self.kind(kind)(message)

    def kind(self, name: str, base: type[BaseException] = Exception) -> type[BaseException]:
        """The class of exceptions of this name that Python does not have; always the same."""
        if (name, base) not in self._kinds:
            members = {"__module__": "__main__", "__qualname__": name}
            self._kinds[name, base] = type(name.rpartition(".")[2], (base,), members)
        return self._kinds[name, base]

    def _write(self, frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[_write(self._fd, rest) :]

    def _read_exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = _read(self._fd, min(count, 1 << 20))
            if not part:
                _leave(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def reason(error: Exception) -> str:
    return "the text holds half a surrogate pair" if isinstance(error, UnicodeError) else str(error)
