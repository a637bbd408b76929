"""Counts calls and returns of the functions that the agent defines at top level.

The counts are a claim: code could forge them. They only choose the functions that are worth checking as skills.

The counting is compiled into the function's body, as calls of C-level counters among the code object's constants.
So there is no name to rebind and no wrapper to remove; frames, tracebacks, signatures, recursion and generators
are unchanged; and uncounted functions cost nothing. A profiler (`sys.setprofile`) would slow down every call of
every function, and the code could disable it.
"""

import ast
import os
import warnings
from collections.abc import Iterator
from itertools import count
from types import CodeType
from typing import Any

from app.sandbox.child.inert import SCOPES, yields

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
