"""Runs the host's code in one fork: confines the process, then serves the runs of a session or of one skill."""

import builtins
import os
import random
import sys
from types import ModuleType
from typing import Any

from app.sandbox.child import confine, frozen_clock, raised, stubs, traces
from app.sandbox.child.api_proxies import Apis
from app.sandbox.child.channel import API_ERROR, HostChannel
from app.sandbox.child.cpu import CpuLimit
from app.sandbox.child.execution import Execution
from app.sandbox.child.name_hints import KnownNames
from app.sandbox.child.output import Output
from app.sandbox.child.relay import SkillRelay
from app.sandbox.child.skill_runner import SkillRunner
from app.sandbox.child.uses import Uses


def serve(channel: HostChannel, bpf: bytes) -> None:
    """Serve a process of a session. Never returns: the process exits with its socket."""
    _, channel.run, setup = channel.receive()
    cpu = CpuLimit(setup["cpu_seconds"])
    output = Output(channel, cpu, setup["output_chars"])
    channel.limit(setup["frame_bytes"], cpu, output.flush_to_host)
    clock = None if setup["now"] is None else frozen_clock.freeze(setup["now"])
    _seed(setup["seed"])
    apis = Apis(channel, setup["apis"])
    namespace = _namespace(apis, channel.kind(API_ERROR))
    execution = Execution(channel, cpu, output, KnownNames(apis))
    confine.confine(bpf, setup["address_space"])
    runner: _CodeRunner | SkillRunner
    if setup["skill"] is None:
        relay = SkillRelay(channel, cpu, output, apis, clock)
        runner = _CodeRunner(channel, execution, namespace, setup["output_chars"])
        runner.load(setup["prelude"], relay)
    else:
        runner = SkillRunner(channel, execution, namespace, clock)
        runner.load(*setup["skill"], compare=setup["compare"])
    while True:
        _, channel.run, *fields = channel.receive()
        runner.run(*fields)


class _CodeRunner:
    def __init__(
        self, channel: HostChannel, execution: Execution, namespace: dict[str, Any], output_chars: int
    ) -> None:
        self._channel = channel
        self._execution = execution
        self._namespace = namespace
        self._output_chars = output_chars
        self._uses = Uses()
        self._turn = 0

    def load(self, prelude: list[tuple[str, str]], relay: stubs.Relay) -> None:
        """Define a stub for each offered function, and report that the session is ready or why it failed."""
        for name, source in prelude:
            error = self._execution.attempt(lambda: self._offer(name, source, relay))  # noqa: B023 - called at once
            if error is not None:
                reason = f"the offered function {name!r} does not load: {raised.last_line(error)}"
                return self._channel.send("failed", reason)
        self._execution.known = self._execution.known._replace(functions=[name for name, _ in prelude])
        self._channel.send("loaded", [])

    def run(self, source: str) -> None:
        """Run code and report the result."""
        self._turn += 1
        self._execution.output.restart(self._output_chars)
        error = self._execution.attempt(lambda: self._execute(source))
        stop = self._execution.stop(error)
        trace = None if error is None else self._execution.describe(error)
        del error
        self._execution.output.flush_to_host()
        self._channel.send("done", stop, trace, self._uses.report())

    def _offer(self, name: str, source: str, relay: stubs.Relay) -> None:
        self._namespace[name] = stubs.define(name, source, relay)

    def _execute(self, source: str) -> None:
        label = f"<turn {self._turn}>"
        traces.remember(label, source)
        exec(self._uses.compile(source, label), self._namespace)


def _namespace(apis: Apis, api_error: type[BaseException]) -> dict[str, Any]:
    main = ModuleType("__main__")
    main.__dict__.update({"__builtins__": builtins, "apis": apis, API_ERROR: api_error})
    sys.modules["__main__"] = main
    return main.__dict__


def _seed(seed: int | None) -> None:
    """Seed random, uuid4 and secrets; without a seed every fork draws its own numbers."""
    random.seed(seed)
    if seed is not None:
        source = random.Random(seed)
        for module, name in ((os, "urandom"), (random, "_urandom")):
            setattr(module, name, source.randbytes)
