"""Says what an undefined name could have been: an app or operation, a module, or a function given for the task."""

import ast
import difflib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from app.sandbox.child.api_proxies import Apis, operations_named
from app.sandbox.child.subscript_hints import failed_node, last_frame
from app.sandbox.hints import NO_FUNCTIONS, NOTE

_SHOWN = 3  # operations
_LISTED = 300  # characters, of functions
_COMPARED = 500  # names
_CLOSE = 0.8


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
    found = operations_named(apis, name)[:_SHOWN] if called else []
    return f"did you mean {' or '.join(found)}?" if found else ""


def _defined(name: str, error: BaseException) -> str:
    """The nearest name that is defined there."""
    tb = last_frame(error)
    names = (
        [] if tb is None else [each for each in (*tb.tb_frame.f_locals, *tb.tb_frame.f_globals) if each[:1] != "_"]
    )
    near = difflib.get_close_matches(name, names[:_COMPARED], n=1, cutoff=_CLOSE)
    return f"did you mean {near[0]}?" if near else ""


def _of_functions(name: str, functions: Sequence[str]) -> str:
    if not functions:
        return NO_FUNCTIONS
    nearest = sorted(functions, key=lambda each: -difflib.SequenceMatcher(None, name, each).ratio())
    return f"the functions given for this task are {', '.join(nearest)}"[:_LISTED]
