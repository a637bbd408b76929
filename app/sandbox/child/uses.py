"""Counts calls and returns of offered functions and of those the agent defines at top level.

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

_BODIES = ("body", "orelse", "finalbody")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Site:
    """The counters of one definition, and how much of them has been reported."""

    def __init__(self, name: str, inherited: bool) -> None:
        self.name = name
        self.inherited = inherited
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
        self._offered: dict[str, object] = {}  # offered names that are not redefined
        self._settled: dict[tuple[str, bool], list[int]] = {}

    def offer(self, name: str, function: object) -> None:
        self._offered[name] = function

    def compile(self, source: str, label: str, offered: str | None = None) -> CodeType:
        """Compile with counters. `offered` is the one function of a prelude source to count."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns about calls of constants
            if "def " not in source:
                return compile(source, label, "exec", dont_inherit=True)
            self._marks.clear()
            tree = ast.parse(source, label)
            self._instrument(tree, offered)
            code = compile(tree, label, "exec", dont_inherit=True)
        return _replace(code, self._marks)

    def report(self, namespace: dict[str, Any]) -> list[tuple[str, bool, int, int]]:
        """(name, inherited, calls, returned) since the last report, without functions that were not called."""
        for name, function in list(self._offered.items()):
            if namespace.get(name) is not function:
                self._disown(name)
        self._settle()
        settled, self._settled = self._settled, {}
        return [(name, inherited, calls, returned) for (name, inherited), (calls, returned) in settled.items()]

    def _instrument(self, tree: ast.Module, offered: str | None) -> None:
        for body in _statement_lists(tree):
            for node in list(body):
                if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                if offered is None or node.name == offered:
                    self._count(node, inherited=offered is not None)
                if offered is None and node.name in self._offered:
                    mark = self._mark(lambda name=node.name: self._disown(name))
                    body.insert(body.index(node) + 1, _calling(mark, node))

    def _count(self, node: ast.FunctionDef | ast.AsyncFunctionDef, inherited: bool) -> None:
        """Body B becomes: try: entered(); B; except BaseException: raised(); raise.

        entered() is inside the block: Python attributes an exception that a signal raises at the head of a loop to
        the instruction before it, which must be inside too.
        """
        site = _Site(node.name, inherited)
        self._sites.append(site)
        docstring = node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
        rest = node.body[len(docstring) :] or [ast.copy_location(ast.Pass(), node.body[0])]
        first = rest[0]
        failure = Exception if _is_generator(node) else BaseException  # closing a generator is not a failure
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

    def _disown(self, name: str) -> None:
        """The agent redefined an offered function: further uses of its name are not inherited."""
        if self._offered.pop(name, None) is not None:
            self._settle()
            for site in self._sites:
                if site.name == name:
                    site.inherited = False

    def _settle(self) -> None:
        for site in self._sites:
            calls, returned = site.unreported()
            if calls:
                total = self._settled.setdefault((site.name, site.inherited), [0, 0])
                total[0] += calls
                total[1] += returned


def _statement_lists(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Every block whose definitions become globals: the module's, and those under if, for, try, with."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        for field in _BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body
                waiting += [child for child in body if not isinstance(child, _SCOPES)]
        waiting += getattr(node, "handlers", []) + getattr(node, "cases", [])


def _is_generator(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        child = waiting.pop()
        if isinstance(child, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(child, _SCOPES):
            waiting += ast.iter_child_nodes(child)
    return False


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
