"""Offered skills: in a session a stub of the same name and signature, whose calls are handed to the host; in a
process of its own each skill's code, compared before and after it is loaded.
"""

import __future__

import ast
import builtins
import os
import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from app.sandbox.child import exceptions
from app.sandbox.child.api_proxies import Apis, parts, resolve
from app.sandbox.child.channel import SLACK, CpuLimit, HostChannel, reason
from app.sandbox.child.execution import Execution, Output
from app.sandbox.child.inert import bound_names, require
from app.sandbox.child.standard_library import Clock
from app.sandbox.wire import Encoder, decode, pack

Relay = Callable[[str, tuple[str, ...], tuple[Any, ...], dict[str, Any]], Any]
"""Calls a skill: its name, the names of its positional parameters, and the arguments."""

_MARK = b"relay"  # replaced among the constants of the stub, which else has a docstring at most
_TYPES = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))
_TYPE_SYNTAX = (ast.Name, ast.Subscript, ast.Tuple, ast.BinOp, ast.BitOr, ast.Constant, ast.Load)


def define(name: str, source: str, relay: Relay) -> Callable[..., Any]:
    """A function that calls the skill. Raises SyntaxError, NameError, or ValueError if it is not inert."""
    label = f"<skill {name}>"
    tree = ast.parse(source, label)
    require(tree, name)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise NameError(f"the source does not define {name!r}")
    exceptions.remember(label, source)
    return _stub(found[-1], label, relay)


def parameters(function: FunctionType) -> list[tuple[str, str]]:
    """(name, kind) of each parameter: "positional", "keyword", "args" or "kwargs"."""
    code = function.__code__
    names = list(code.co_varnames)
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    found = [(each, "positional") for each in names[:positional]]
    found += [(each, "keyword") for each in names[positional : positional + keyword]]
    rest = positional + keyword
    if code.co_flags & 4:
        found.append((names[rest], "args"))
        rest += 1
    if code.co_flags & 8:
        found.append((names[rest], "kwargs"))
    return found


def _stub(node: ast.FunctionDef, label: str, relay: Relay) -> Callable[..., Any]:
    given = node.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    call = ast.Call(ast.Constant(_MARK), [ast.Name(each, ast.Load()) for each in positional], [])
    if given.vararg:
        call.args.append(ast.Starred(ast.Name(given.vararg.arg, ast.Load()), ast.Load()))
    call.keywords = [ast.keyword(each.arg, ast.Name(each.arg, ast.Load())) for each in given.kwonlyargs]
    if given.kwarg:
        call.keywords.append(ast.keyword(None, ast.Name(given.kwarg.arg, ast.Load())))
    docstring = node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
    returning = ast.Return(call)
    for each in ast.walk(returning):
        each.lineno = each.end_lineno = exceptions.STUB_LINE  # type: ignore[attr-defined]
        each.col_offset = each.end_col_offset = 0  # type: ignore[attr-defined]
    node.body = [*docstring, returning]
    _quote_annotations(node)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(ast.Module([node], []), label, "exec", dont_inherit=True), namespace)
    function: FunctionType = namespace[node.name]
    names = tuple(positional + ([given.vararg.arg] if given.vararg else []))
    function.__code__ = _with_constant(function.__code__, _relay_for(node.name, names, relay))
    return function


def _relay_for(name: str, names: tuple[str, ...], relay: Relay) -> Callable[..., Any]:
    return lambda *args, **kwargs: relay(name, names, args, kwargs)


def _with_constant(code: CodeType, value: Any) -> CodeType:
    return code.replace(co_consts=tuple(value if each == _MARK else each for each in code.co_consts))


def _quote_annotations(node: ast.FunctionDef) -> None:
    """Annotations become text, unless they are made of builtin types alone."""
    given = node.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None and each.annotation is not None:
            each.annotation = _quoted(each.annotation)
    if node.returns is not None:
        node.returns = _quoted(node.returns)


def _quoted(annotation: ast.expr) -> ast.expr:
    if _is_builtin_type(annotation):
        return annotation
    return ast.copy_location(ast.Constant(ast.unparse(annotation)), annotation)


def _is_builtin_type(annotation: ast.expr) -> bool:
    for each in ast.walk(annotation):
        if not isinstance(each, _TYPE_SYNTAX) or (isinstance(each, ast.Name) and each.id not in _TYPES):
            return False
    try:
        eval(compile(ast.Expression(annotation), "<annotation>", "eval", dont_inherit=True), {})
    except Exception:  # noqa: BLE001 - such as int[str]: it stays text
        return False
    return True


class SkillRelay:
    """Fulfils `Relay`: calls behave as if the skill ran here, but for arguments being copies."""

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
            return exceptions.decode_chain(content, self._channel.kind)
        except Exception:  # noqa: BLE001 - what a hostile skill sends may be anything
            return RuntimeError(f"{name} raised an exception that cannot be shown")


class LoadEffects:
    """The state of the process at the time it is made."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = self._state()

    def found(self, allowed: set[str]) -> list[str]:
        """What changed since then, other than new modules, and names in `allowed` that the namespace got."""
        after = self._state()
        changed = {what for what, held in self._before.items() if not _kept(held, after[what])}
        changed |= {what for what in ("builtins", "environment") if len(after[what]) != len(self._before[what])}
        added = after["names"].keys() - self._before["names"].keys() - allowed
        return sorted(changed | {f"name {name}" for name in added})

    def _state(self) -> dict[str, dict[Any, Any]]:
        return {
            "names": dict(self._namespace),
            "builtins": dict(vars(builtins)),
            "modules": dict(sys.modules),
            "environment": {name: hash(value) for name, value in os.environ.items()},
            "random": {"state": hash(random.getstate())},
            "hooks": {
                "settings": hash((tuple(sys.path), sys.getrecursionlimit(), len(warnings.filters))),
                "excepthook": sys.excepthook,
                "displayhook": sys.displayhook,
                "trace": sys.gettrace(),
                "profile": sys.getprofile(),
            },
        }


def _kept(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    missing = object()
    return all(
        after.get(key, missing) is value or (type(value) is int and after.get(key) == value)
        for key, value in before.items()
    )


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
            self._channel.send("failed", exceptions.last_line(error)[:_MAX_LINE])

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
        exceptions.remember(label, source)
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
            lambda: described.append((exceptions.last_line(error)[:_MAX_LINE], exceptions.encode_chain(error)))
        ):
            return described[0]
        plain = RuntimeError(f"{type(error).__name__}: <an exception that cannot be printed>")
        return exceptions.last_line(plain), exceptions.encode_chain(plain)
