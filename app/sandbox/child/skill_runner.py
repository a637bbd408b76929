"""Runs the calls of one offered skill, in a process of its own."""

import __future__

import ast
from functools import partial
from types import FunctionType
from typing import Any

from app.sandbox.child import raised, traces
from app.sandbox.child.api_proxies import Apis, parts, resolve
from app.sandbox.child.channel import HostChannel
from app.sandbox.child.execution import Execution
from app.sandbox.child.frozen_clock import Clock
from app.sandbox.child.inert import bound_names, require
from app.sandbox.child.load_effects import LoadEffects
from app.sandbox.child.stubs import parameters
from app.sandbox.values import Encoder, decode

_MAX_LINE = 2_000


class SkillRunner:
    """Holds one skill. Nothing of it runs until it is called."""

    def __init__(
        self, channel: HostChannel, execution: Execution, namespace: dict[str, Any], clock: Clock | None
    ) -> None:
        self._channel = channel
        self._execution = execution
        self._namespace = namespace
        self._apis: Apis = namespace["apis"]
        self._clock = clock
        self._function: FunctionType

    def load(self, name: str, source: str, *, compare: bool) -> None:
        """Define the skill, and report its parameters, or why it does not load.

        With `compare`, also check that it is inert, and that loading it changes nothing else. A session has
        checked its skills already, before any other code ran in it.
        """
        define = self._define_and_compare if compare else self._define
        error = self._execution.attempt(lambda: define(name, source))
        if error is None:
            self._channel.send("loaded", parameters(self._function))
        else:
            self._channel.send("failed", raised.last_line(error)[:_MAX_LINE])

    def run(self, args: list[Any], kwargs: dict[str, Any], cpu_seconds: float, chars: int, slept: int) -> None:
        """Call the skill, and report its result or what it raised."""
        self._execution.output.restart(chars)
        if self._clock is not None:
            self._clock.advance_to(slept)
        results: list[Any] = []
        error = self._execution.attempt(lambda: results.append(self._call(args, kwargs)), cpu_seconds)
        stop = self._execution.stop(error)
        message = ("returned", results[0]) if error is None else ("raised", *self._describe(error), stop)
        del error
        self._execution.output.flush_to_host()
        now = 0 if self._clock is None else self._clock.slept_ns()
        try:
            self._channel.send(*message, now)
        except ValueError as large:  # as JSON it takes more bytes than it has
            self._channel.send("raised", *self._describe(large.with_traceback(None)), "error", now)

    def _define_and_compare(self, name: str, source: str) -> None:
        tree = ast.parse(source, f"<skill {name}>")
        require(tree, name)
        effects = LoadEffects(self._namespace)
        self._define(name, source)
        changed = effects.found(bound_names(tree))
        if changed:
            raise ValueError(f"loading it changes other things: {', '.join(changed)}")

    def _define(self, name: str, source: str) -> None:
        label = f"<skill {name}>"
        traces.remember(label, source)
        flags = __future__.annotations.compiler_flag
        exec(compile(source, label, "exec", flags, dont_inherit=True), self._namespace)
        found = self._namespace.get(name)
        if not isinstance(found, FunctionType):
            raise NameError(f"the source does not define {name!r}")
        self._function = found

    def _call(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        known = partial(resolve, self._apis)
        value = self._function(*decode(args, known), **decode(kwargs, known))
        try:
            return Encoder(self._channel.frame_bytes, parts).encode(value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"cannot pass the result of {self._function.__name__}: {error}") from None

    def _describe(self, error: BaseException) -> tuple[str, list[Any]]:
        """The last line of the traceback, and the exception for the caller."""
        described: list[tuple[str, list[Any]]] = []
        self._execution.hint(error)
        if self._execution.bounded(
            lambda: described.append((raised.last_line(error)[:_MAX_LINE], raised.encode_chain(error)))
        ):
            return described[0]
        plain = RuntimeError(f"{type(error).__name__}: <an exception that cannot be printed>")
        return raised.last_line(plain), raised.encode_chain(plain)
