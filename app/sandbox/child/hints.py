"""What failed code could have meant: the keys of the dict that it asked for another, or that the value is a text
or a list; and for an undefined name an app or operation, a module, or a function given for the task. The
value is found again from the frame that raised; no expression is evaluated twice.
"""

import ast
import difflib
import itertools
import linecache
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

from app.sandbox.child.api_proxies import Apis, operations_named
from app.sandbox.child.channel import HostChannel
from app.sandbox.child.exceptions import shown_file
from app.sandbox.wire import NO_FUNCTIONS, NOTE

_MAX_SOURCE = 100_000  # characters
_SHOWN = 20  # keys
_COMPARED = 500
_MAX_KEY = 60  # characters
_CLOSE = 0.6

Node = TypeVar("Node", bound=ast.expr)


def add_hint(error: BaseException, channel: HostChannel) -> None:
    """Add a note to the error of a subscript whose value is a variable, an answer of an API, or inside of one."""
    if type(error) not in (KeyError, TypeError) or hasattr(error, "__notes__"):
        return
    subscript, tb = failed_node(error, ast.Subscript), last_frame(error)
    if subscript is None or tb is None:
        return
    try:
        hint = _hint(error, _value(subscript.value, tb.tb_frame, channel))
    except LookupError:
        return
    if hint:
        error.add_note(f"{NOTE}{hint}")


def failed_node(error: BaseException, kind: type[Node]) -> Node | None:
    """What failed in the last frame, if it was the agent's and of this kind."""
    tb = last_frame(error)
    if tb is None or shown_file(tb.tb_frame.f_code.co_filename) is None:  # as of every call with wrong arguments
        return None
    code = tb.tb_frame.f_code
    lines = linecache.getlines(code.co_filename)
    if sum(map(len, lines)) > _MAX_SOURCE:
        return None
    place = next(itertools.islice(code.co_positions(), tb.tb_lasti // 2, None), None)
    try:
        nodes = ast.walk(ast.parse("".join(lines)))
    except (SyntaxError, ValueError):
        return None
    return next((each for each in nodes if isinstance(each, kind) and _place(_failing(each)) == place), None)


def _failing(node: ast.expr) -> ast.expr:
    """Of a call or an attribute, the name that is called or looked into."""
    match node:
        case ast.Call(func=inner) | ast.Attribute(value=inner):
            return inner
    return node


def last_frame(error: BaseException) -> TracebackType | None:
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb


def _place(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _value(node: ast.expr, frame: FrameType, channel: HostChannel) -> Any:
    """What an expression had for a value. Raises LookupError for one that would have to run again."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return frame.f_locals[name] if name in frame.f_locals else frame.f_globals[name]
        case ast.Subscript(value=inner, slice=index):
            container, key = _value(inner, frame, channel), _value(index, frame, channel)
            if type(container) in (dict, list) and type(key) in (str, int):
                return container[key]
        case ast.Call(func=ast.Attribute(attr=operation)):
            api, value = channel.latest
            if api.endswith(f".{operation}"):
                return value
    raise LookupError


def _hint(error: BaseException, value: Any) -> str:
    match error:
        case KeyError(args=(str() | int() as key,)) if type(value) is dict and key not in value:
            return _keys(value, key)
        case TypeError() if type(value) is str:
            return f"it is the text {value[:_MAX_KEY]!r}"
        case TypeError() if type(value) is list and value and type(value[0]) is dict:
            return f"it is a list of {len(value)}; the keys of the first are {_listed(value[0])}"
        case TypeError() if type(value) is list:
            return f"it is a list of {len(value)}"
    return ""


def _keys(value: dict[Any, Any], key: str | int) -> str:
    if not value:
        return "the dict is empty"
    names = [each for each in itertools.islice(value, _COMPARED) if type(each) is str and len(each) <= _MAX_KEY]
    near = difflib.get_close_matches(key[:_MAX_KEY], names, n=1, cutoff=_CLOSE) if type(key) is str else []
    return (f"did you mean {near[0]}? The keys are " if near else "the keys are ") + _listed(value)


def _listed(value: dict[Any, Any]) -> str:
    keys = itertools.islice(value, _SHOWN)
    shown = [str(each)[:_MAX_KEY] if type(each) in (str, int) else f"a {type(each).__name__}" for each in keys]
    return ", ".join(shown) + (", ..." if len(value) > _SHOWN else "")


_NAME_SHOWN = 3  # operations
_LISTED = 300  # characters, of functions
_NAME_COMPARED = 500  # names
_NAME_CLOSE = 0.8


class KnownNames(NamedTuple):
    """What code of a process can call. `functions` are those given for the task, None in the process of one."""

    apis: Apis
    functions: Sequence[str] | None = None


def add_name_hint(error: BaseException, known: KnownNames) -> None:
    """Add a note to the error of a name that is not defined, if there is something to say about it."""
    name = getattr(error, "name", None)
    if type(error) is not NameError or type(name) is not str or hasattr(error, "__notes__"):
        return
    called = failed_node(error, ast.Call) is not None
    hint = _of_apis(name, known.apis, called=called) or _defined(name, error)
    if not hint and name in sys.stdlib_module_names and failed_node(error, ast.Attribute) is not None:
        hint = f"import {name}"
    if not hint and called and known.functions is not None:
        hint = _of_functions(name, known.functions)
    if hint:
        error.add_note(f"{NOTE}{hint}")


def _of_apis(name: str, apis: Apis, *, called: bool) -> str:
    if name in dir(apis):
        return f"it is apis.{name}"
    found = operations_named(apis, name)[:_NAME_SHOWN] if called else []
    return f"did you mean {' or '.join(found)}?" if found else ""


def _defined(name: str, error: BaseException) -> str:
    """The nearest name that is defined there."""
    tb = last_frame(error)
    names = (
        [] if tb is None else [each for each in (*tb.tb_frame.f_locals, *tb.tb_frame.f_globals) if each[:1] != "_"]
    )
    near = difflib.get_close_matches(name, names[:_NAME_COMPARED], n=1, cutoff=_NAME_CLOSE)
    return f"did you mean {near[0]}?" if near else ""


def _of_functions(name: str, functions: Sequence[str]) -> str:
    if not functions:
        return NO_FUNCTIONS
    nearest = sorted(functions, key=lambda each: -difflib.SequenceMatcher(None, name, each).ratio())
    return f"the functions given for this task are {', '.join(nearest)}"[:_LISTED]
