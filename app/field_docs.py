"""What is written about the fields of a type in its source, for forms and reference pages.

It is the docstring below a field, or the comment behind it that begins with `#:`.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache

from app.untrusted.syntax_tree import syntax_tree

_COMMENTED = re.compile(r"    (\w+): .*?  #: (.+)")


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """By field; those of the types that it extends, too. A field about which nothing is written is not in it."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__annotations__" in vars(each):
            source = textwrap.dedent(inspect.getsource(each))
            found |= dict(_comments(source)) | dict(_docstrings(source))
    return found


def _comments(source: str) -> Iterator[tuple[str, str]]:
    for line in source.splitlines():
        if match := _COMMENTED.fullmatch(line):
            yield match[1], match[2]


def _docstrings(source: str) -> Iterator[tuple[str, str]]:
    (definition,) = syntax_tree(source).body
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, " ".join(text.split())
