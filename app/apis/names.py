"""Python identifiers for the names in a document."""

import keyword
import re
from collections.abc import Iterable
from difflib import get_close_matches

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_NAME = re.compile(r"[^0-9A-Za-z]+")
_COMPARED = 5_000  # names that an unknown one is compared with, each in time quadratic in its length
_COMPARED_CHARS = 100


def operation_name(operation_id: str, method: str, path: str) -> str:
    """The operationId in snake case; method and path if that leaves nothing.

    >>> operation_name("fetchHTTPMails", "GET", "/mails"), operation_name("", "GET", "/mails/{id}")
    ('fetch_http_mails', 'get_mails_id')
    """
    return _snake(operation_id) or _snake(f"{method.lower()} {path}")


def argument_name(wire_name: str) -> str:
    """The name itself if it is a valid identifier, otherwise the nearest valid one.

    >>> [argument_name(name) for name in ("userId", "X-Trace", "from", "filter[tag]", "2fa")]
    ['userId', 'X_Trace', 'from_', 'filter_tag', 'x_2fa']
    """
    if wire_name.isascii() and wire_name.isidentifier() and not wire_name.startswith("_"):
        return _not_keyword(wire_name)
    name = _NOT_NAME.sub("_", wire_name).strip("_") or "argument"
    return _not_keyword(f"x_{name}" if name[0].isdigit() else name)


class UniqueNames:
    """Numbers names that are taken, from 2 on, in time linear in their number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def add(self, name: str) -> str:
        """The name, or the first free one of name_2, name_3, ..."""
        candidate, number = name, self._next.get(name, 2)
        while candidate in self._taken:
            candidate, number = f"{name}_{number}", number + 1
        self._next[name] = number
        self._taken.add(candidate)
        return candidate


def nearest(name: str, names: Iterable[str], limit: int = 3) -> str:
    """For an error message: the names closest to an unknown one, or all if none is close."""
    known = list(names)
    comparable = [each for each in known[:_COMPARED] if len(each) <= _COMPARED_CHARS]
    close = get_close_matches(name, comparable, n=limit, cutoff=0.5) if len(name) <= _COMPARED_CHARS else []
    if close:
        return "did you mean " + " or ".join(close) + "?"
    shown = ", ".join(each[:_COMPARED_CHARS] for each in known[:20]) + (", ..." if len(known) > 20 else "")
    return f"there is {shown}" if known else "there is none"


def _snake(text: str) -> str:
    name = _NOT_NAME.sub("_", _WORD_START.sub("_", text)).strip("_").lower()
    return _not_keyword(f"op_{name}" if name[:1].isdigit() else name)


def _not_keyword(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
