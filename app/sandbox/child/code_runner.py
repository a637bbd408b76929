"""Runs the host's code in one fork: confines the process, defines the offered functions, then serves runs."""

import builtins
import io
import mmap
import os
import random
import sys
from types import ModuleType

from app.sandbox.child import confine, frozen_clock, traces
from app.sandbox.child.api_proxies import Apis
from app.sandbox.child.channel import HostChannel
from app.sandbox.child.cpu import CpuLimit
from app.sandbox.child.output import Output
from app.sandbox.child.uses import Uses

_TRACE_SECONDS = 0.5  # to print an exception, which may run its own code
_RESERVE_BYTES = 4 << 20


def serve(channel: HostChannel, bpf: bytes) -> None:
    """Serve a session. Never returns: the process exits with its socket."""
    _, channel.run, setup = channel.receive()
    cpu = CpuLimit(setup["cpu_seconds"])
    output = Output(channel, cpu, setup["output_chars"])
    channel.limit(setup["frame_bytes"], cpu, output.flush_to_host)
    if setup["now"] is not None:
        frozen_clock.freeze(setup["now"])
    _seed(setup["seed"])
    runner = _CodeRunner(channel, cpu, output, Apis(channel, setup["apis"]))
    confine.confine(bpf, setup["address_space"])
    runner.load(setup["prelude"])
    while True:
        _, channel.run, code = channel.receive()
        runner.run(code)


class _CodeRunner:
    def __init__(self, channel: HostChannel, cpu: CpuLimit, output: Output, apis: Apis) -> None:
        self._channel = channel
        self._cpu = cpu
        self._output = output
        self._uses = Uses()
        self._turn = 0
        self._reserve: mmap.mmap | None = None
        main = ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, apis=apis)
        sys.modules["__main__"] = main
        self._namespace = main.__dict__

    def load(self, prelude: list[tuple[str, str]]) -> None:
        """Define the offered functions, and report to the host that the session is ready or why it failed."""
        for name, source in prelude:
            error = self._execute(source, f"<skill {name}>", offered=name)
            if error is None and name not in self._namespace:
                error = NameError(f"the source does not define {name!r}")
            if error is not None:
                return self._channel.send(
                    "failed", f"the offered function {name!r} does not load: {_last_line(error)}"
                )
            self._uses.offer(name, self._namespace[name])
        self._uses.report(self._namespace)
        self._channel.send("ready")

    def run(self, source: str) -> None:
        """Run code and report the result."""
        self._turn += 1
        self._output.restart()
        if self._reserve is None:
            self._reserve = _reserve()
        error = self._execute(source, f"<turn {self._turn}>")
        if isinstance(error, MemoryError):
            self._reserve = None  # frees memory to report it
        sys.settrace(None)
        sys.setprofile(None)
        stop = _stop(error, self._cpu)
        trace = None if error is None else self._describe(error)
        del error
        self._output.flush_to_host()
        self._channel.send("done", stop, trace, self._uses.report(self._namespace))

    def _execute(self, source: str, label: str, offered: str | None = None) -> BaseException | None:
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = self._output  # type: ignore[misc,assignment]
        sys.stdin = sys.__stdin__ = io.StringIO()  # type: ignore[misc,assignment]
        try:
            self._cpu.arm()
            try:
                traces.remember(label, source)
                exec(self._uses.compile(source, label, offered), self._namespace)
            finally:
                self._cpu.disarm()
        except BaseException as error:  # noqa: BLE001 - the last resort: any exception of the code is an observation
            self._cpu.disarm()
            return error
        return None

    def _describe(self, error: BaseException) -> str:
        try:
            self._cpu.arm(_TRACE_SECONDS)
            try:
                return traces.describe(error)
            finally:
                self._cpu.disarm()
        except BaseException:  # noqa: BLE001 - the exception's own __str__ or __repr__ may do anything
            self._cpu.disarm()
            return f"{type(error).__name__}: <an exception that cannot be printed>"


def _stop(error: BaseException | None, cpu: CpuLimit) -> str:
    if error is None:
        return "ok"
    if error is cpu.raised:
        return "cpu"
    return "memory" if type(error) is MemoryError else "error"


def _reserve() -> mmap.mmap | None:
    """Reserved address space, never touched and so free of cost. None if there is none left."""
    try:
        return mmap.mmap(-1, _RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return None


def _last_line(error: BaseException) -> str:
    return traces.describe(error).rsplit("\n", 1)[-1]


def _seed(seed: int | None) -> None:
    """Seed random, uuid4 and secrets; without a seed every fork draws its own numbers."""
    random.seed(seed)
    if seed is not None:
        source = random.Random(seed)
        for module, name in ((os, "urandom"), (random, "_urandom")):
            setattr(module, name, source.randbytes)
