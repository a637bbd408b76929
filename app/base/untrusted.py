"""Syntax trees of untrusted Python, which every analysis can walk, recursively too. Pure."""

import ast
import threading
import warnings

_MAX_DEPTH = 150  # levels of nodes: Python's own analyses recurse a few times for each, within 1,000
_MAX_NODES = 50_000
_MAX_CHARS = 64_000
_MAX_UNFOLDED = 200_000  # nodes with the copies that the compiler makes: a second of its time
_one_at_a_time = threading.RLock()


def syntax_tree(code: str) -> ast.Module:
    """Raises what `ast.parse` does. One thread at a time: CPython 3.11 counts the depth that all threads together
    are at, and raises SystemError if that differs in the end.
    """
    with _one_at_a_time:
        return ast.parse(code)


def parse(code: str) -> ast.Module | None:
    """The syntax tree; None for code that does not compile, or is too deep or too long to be analysed."""
    tree = compiled(code) if len(code) <= _MAX_CHARS else None
    return tree if tree is not None and is_analysable(tree) else None


def compiled(code: str) -> ast.Module | None:
    """The syntax tree of code that compiles, even a deep one: walk it with `ast.walk`, never recursively.

    None also for code that would take very long to compile.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the agent's code, not ours
            tree = syntax_tree(code)
            if "finally" in code and _unfolds(tree):
                return None
            compile(code, "<skill>", "exec", dont_inherit=True)
            return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_analysable(tree: ast.AST) -> bool:
    """Whether a tree is within the limits of depth and nodes."""
    level, nodes = [tree], 0
    for _ in range(_MAX_DEPTH):
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return True
        if nodes > _MAX_NODES:
            return False
    return False


def _unfolds(tree: ast.AST) -> bool:
    """Whether it compiles to far more than it is: a `finally` block is copied to every way out of its `try`."""
    exits = sum(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(tree))
    waiting, nodes = [(tree, 1)], 0
    while waiting and nodes <= _MAX_UNFOLDED:
        node, copies = waiting.pop()
        nodes += copies
        waiting += [(child, copies) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Try | ast.TryStar):
            waiting += [(child, copies * (1 + exits)) for child in node.finalbody]
    return nodes > _MAX_UNFOLDED
