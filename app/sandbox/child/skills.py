"""The functions that stand for offered skills in a session: same name, signature and docstring, other body.

A skill's own code never runs here: a call is handed to the host, which runs it in a process of the skill's own.
"""

import ast
import builtins
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from app.sandbox.child import traces
from app.sandbox.child.inert import require

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
    traces.remember(label, source)
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
        each.lineno = each.end_lineno = traces.STUB_LINE  # type: ignore[attr-defined]
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
