"""Hands calls of offered skills to the host, which runs each skill in a process of its own."""

from functools import partial
from typing import Any

from app.sandbox.child import raised
from app.sandbox.child.api_proxies import Apis, parts, resolve
from app.sandbox.child.channel import SLACK, HostChannel, reason
from app.sandbox.child.cpu import CpuLimit
from app.sandbox.child.frozen_clock import Clock
from app.sandbox.child.output import Output
from app.sandbox.frames import pack
from app.sandbox.values import Encoder, decode


class SkillRelay:
    """Fulfils `stubs.Relay`: calls behave as if the skill ran here, but for arguments being copies."""

    def __init__(
        self, channel: HostChannel, cpu: CpuLimit, output: Output, apis: Apis, clock: Clock | None
    ) -> None:
        self._channel = channel
        self._cpu = cpu
        self._output = output
        self._apis = apis
        self._clock = clock

    def __call__(self, name: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The skill's result. Raises what it raised, or TypeError or ValueError for its arguments."""
        frame = self._frame(name, names, args, kwargs)
        kind, content, stop, (cpu_seconds, chars, slept) = self._channel.ask(frame)
        self._output.left = chars
        if self._clock is not None:
            self._clock.advance_to(slept)
        if kind == "returned":
            self._cpu.spend(cpu_seconds)
            return decode(content, partial(resolve, self._apis))
        error = self._error(name, kind, content)
        if stop == "cpu" and isinstance(error, TimeoutError):
            self._cpu.raised = error
        else:
            self._cpu.spend(cpu_seconds)
        raise error

    def _frame(self, name: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        encoder = Encoder(self._channel.frame_bytes, parts)
        parameter = ""
        try:
            values = []
            for position, value in enumerate(args):
                parameter = names[min(position, len(names) - 1)]
                values.append(encoder.encode(value))
            named = {}
            for parameter, value in kwargs.items():
                named[parameter] = encoder.encode(value)
            slept = 0 if self._clock is None else self._clock.slept_ns()
            message = ["skill", self._channel.run, name, values, named, slept]
            return pack(message, self._channel.frame_bytes + SLACK)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"cannot pass the argument {parameter!r} of {name}: {reason(error)}") from None

    def _error(self, name: str, kind: str, content: Any) -> BaseException:
        if kind == "raise":
            return self._channel.exception(*content)
        try:
            return raised.decode_chain(content, self._channel.kind)
        except Exception:  # noqa: BLE001 - what a hostile skill sends may be anything
            return RuntimeError(f"{name} raised an exception that cannot be shown")
