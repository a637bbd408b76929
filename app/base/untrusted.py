"""Text of foreign origin, read within limits: JSON, and Python as a syntax tree that every analysis can walk.
Pure.
"""

import ast
import math
import threading
import warnings

import msgspec

from app.base.values import Json

_MAX_INT_BITS = 1023  # the range of a float
_DECODER = msgspec.json.Decoder(float_hook=float)  # its own parser takes 10 us for some numbers of 17 digits


class JsonError(ValueError):
    """The text is not JSON, or too large or too deep."""


def decode_json(text: bytes, *, max_values: int, max_depth: int) -> Json:
    """The value, which every serializer of ours can store. Takes linear time.

    Raises JsonError also for NaN, numbers beyond a float, and half a surrogate pair.
    """
    if count_values(text) > max_values:
        raise JsonError(f"it holds more than {max_values:,} values")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JsonError(str(error)) from error
    _check(value, max_depth)
    return value


def count_values(text: bytes) -> int:
    """The number of values in JSON text, without decoding it; exact if no space is between empty brackets."""
    marks = text.count(b",") + text.count(b"[") + text.count(b"{")
    if marks < 1000:
        return marks + 1
    parts = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')  # every second part is a string
    bare = b"".join(parts[::2])
    return 1 + sum(map(bare.count, (b",", b"[", b"{"))) - bare.count(b"[]") - bare.count(b"{}")


def _check(value: Json, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth + 1):
        below: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            elif isinstance(each, int | float):
                check_number(each)
        if not below:
            return
        level = below
    raise _too_deep(max_depth)


def check_number(value: float) -> None:
    """Raises JsonError if it is beyond the range of a float."""
    if not is_in_range(value):
        much = f"an integer has more than {_MAX_INT_BITS} bits"
        raise JsonError(much if isinstance(value, int) else "a number is beyond the range of a float")


def is_in_range(value: float) -> bool:
    """Whether a number is within the range of a float."""
    return value.bit_length() <= _MAX_INT_BITS if isinstance(value, int) else math.isfinite(value)


def _too_deep(max_depth: int) -> JsonError:
    return JsonError(f"it is nested deeper than {max_depth}")


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
