"""Patterns of API documents, matched in time linear in the text by RE2."""

import re
from functools import lru_cache
from typing import Any

import re2

_MEMORY = 1 << 20  # of one compiled pattern
_INSTRUCTIONS = 4_000
_LENGTH = 2_000
_LITERAL = re.compile(r"/\^.*|/.+/[gimsuy]+", re.DOTALL)  # with the slashes of ECMAScript, which are no part of it
_ESCAPE = re.compile(r"(\\\\)|\\u(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{4}))")


class Pattern:
    """A compiled pattern. `size` is its number of instructions: a search costs at most length times size."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.size: int = compiled.programsize

    def found_in(self, text: str) -> bool:
        try:
            return self._compiled.search(text) is not None
        except UnicodeEncodeError:  # half a surrogate pair
            return self._compiled.search(text.encode("utf-8", "replace").decode()) is not None


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Pattern | None:
    r"""None for a pattern that RE2 lacks or that is too large: look-around, back-references, {2000}.

    And for one between slashes, which nothing would fit that it is meant for.

    >>> [compiled(text) is not None for text in (r"^\d+$", r"\u00e9", "(?=a)", r"(a)\1", "[", "/^a$/", "/a/")]
    [True, True, False, False, False, False, True]
    """
    if len(pattern) > _LENGTH or _LITERAL.fullmatch(pattern):
        return None
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        result = Pattern(re2.compile(_ESCAPE.sub(_re2_escape, pattern), options))
    except (re2.error, UnicodeEncodeError):
        return None
    return result if result.size <= _INSTRUCTIONS else None


def _re2_escape(escape: re.Match[str]) -> str:
    r"""ECMAScript's \u00e9 and \u{e9} are \x{e9} in RE2."""
    return escape[1] or f"\\x{{{escape[2] or escape[3]}}}"
