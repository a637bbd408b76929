"""Runs the host's code in one fork: confines the process, then serves the runs of a session or of one skill.
Counts the calls and returns of the functions that the agent defines at top level: a claim, which code could
forge.
"""

import ast
import builtins
import os
import random
import sys
import warnings
from collections.abc import Iterator
from itertools import count
from types import CodeType, ModuleType
from typing import Any

from app.sandbox.child import confine, exceptions, skills, standard_library
from app.sandbox.child.api_proxies import Apis
from app.sandbox.child.channel import API_ERROR, CpuLimit, HostChannel
from app.sandbox.child.execution import Execution, Output
from app.sandbox.child.hints import KnownNames
from app.sandbox.child.inert import SCOPES, yields
from app.sandbox.child.skills import SkillRelay, SkillRunner

_BODIES = ("body", "orelse", "finalbody")


class _Site:
    """The counters of one definition, and how much of them has been reported."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entered, self.raised = count(), count()
        self._reported = (0, 0)

    def unreported(self) -> tuple[int, int]:
        """(calls, returns) since the last time. A suspended generator counts as returned."""
        entered, raised = _value(self.entered), _value(self.raised)
        calls, failures = entered - self._reported[0], raised - self._reported[1]
        self._reported = (entered, raised)
        return calls, max(0, calls - failures)


class Uses:
    """The counters of one session."""

    def __init__(self) -> None:
        self._secret = os.urandom(16).hex()  # so that no constant of the agent can be a mark
        self._marks: dict[str, object] = {}
        self._sites: list[_Site] = []

    def compile(self, source: str, label: str) -> CodeType:
        """Compile with counters."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns about calls of constants
            if "def " not in source:
                return compile(source, label, "exec", dont_inherit=True)
            try:
                code = self._instrumented(source, label)
            except (RecursionError, MemoryError):  # a tree needs more of both than the compiler alone
                return compile(source, label, "exec", dont_inherit=True)
        return _replace(code, self._marks)

    def report(self) -> list[tuple[str, int, int]]:
        """(name, calls, returned) since the last report, without functions that were not called."""
        totals: dict[str, list[int]] = {}
        for site in self._sites:
            calls, returned = site.unreported()
            if calls:
                total = totals.setdefault(site.name, [0, 0])
                total[0] += calls
                total[1] += returned
        return [(name, calls, returned) for name, (calls, returned) in totals.items()]

    def _instrumented(self, source: str, label: str) -> CodeType:
        self._marks.clear()
        tree = ast.parse(source, label)
        for body in _statement_lists(tree):
            for node in body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self._count(node)
        return compile(tree, label, "exec", dont_inherit=True)

    def _count(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Body B becomes: try: entered(); B; except BaseException: raised(); raise.

        entered() is inside the block: Python attributes an exception that a signal raises at the head of a loop to
        the instruction before it, which must be inside too.
        """
        site = _Site(node.name)
        self._sites.append(site)
        docstring = node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
        rest = node.body[len(docstring) :] or [ast.copy_location(ast.Pass(), node.body[0])]
        first = rest[0]
        failure = Exception if yields(node) else BaseException  # closing a generator is not a failure
        handler = ast.ExceptHandler(
            type=_at(ast.Constant(self._mark(failure)), first),
            name=None,
            body=[_calling(self._mark(site.raised.__next__), first), _at(ast.Raise(exc=None, cause=None), first)],
        )
        body = [_calling(self._mark(site.entered.__next__), first), *rest]
        guarded = ast.Try(body=body, handlers=[_at(handler, first)], orelse=[], finalbody=[])
        node.body = [*docstring, _at(guarded, first)]

    def _mark(self, meaning: object) -> str:
        mark = f"{self._secret}:{len(self._marks)}"
        self._marks[mark] = meaning
        return mark


def _statement_lists(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Every block whose definitions become globals: the module's, and those under if, for, try, with."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        for field in _BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body
                waiting += [child for child in body if not isinstance(child, SCOPES)]
        waiting += getattr(node, "handlers", []) + getattr(node, "cases", [])


def _calling(mark: str, location: ast.AST) -> ast.Expr:
    call = ast.Call(func=_at(ast.Constant(mark), location), args=[], keywords=[])
    return ast.copy_location(ast.Expr(_at(call, location)), location)


def _at(node: Any, location: ast.AST) -> Any:
    return ast.copy_location(node, location)


def _replace(code: CodeType, marks: dict[str, object]) -> CodeType:
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constant = _replace(constant, marks)
        elif isinstance(constant, str):
            constant = marks.get(constant, constant)
        constants.append(constant)
    return code.replace(co_consts=tuple(constants))


def _value(counter: Iterator[int]) -> int:
    """The counter's value without advancing it: repr(count(3)) is 'count(3)'."""
    return int(repr(counter)[6:-1])


def serve(channel: HostChannel, bpf: bytes) -> None:
    """Serve a process of a session. Never returns: the process exits with its socket."""
    _, channel.run, setup = channel.receive()
    cpu = CpuLimit(setup["cpu_seconds"])
    output = Output(channel, cpu, setup["output_chars"])
    channel.limit(setup["frame_bytes"], cpu, output.flush_to_host)
    clock = None if setup["now"] is None else standard_library.freeze(setup["now"])
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

    def load(self, prelude: list[tuple[str, str]], relay: skills.Relay) -> None:
        """Define a stub for each offered function, and report that the session is ready or why it failed."""
        for name, source in prelude:
            error = self._execution.attempt(lambda: self._offer(name, source, relay))  # noqa: B023 - called at once
            if error is not None:
                reason = f"the offered function {name!r} does not load: {exceptions.last_line(error)}"
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

    def _offer(self, name: str, source: str, relay: skills.Relay) -> None:
        self._namespace[name] = skills.define(name, source, relay)

    def _execute(self, source: str) -> None:
        label = f"<turn {self._turn}>"
        exceptions.remember(label, source)
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
