"""Python identifiers for the names in a document."""

import keyword
import re
from collections.abc import Container, Iterable
from difflib import get_close_matches

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_NAME = re.compile(r"[^0-9A-Za-z]+")


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


def unique(name: str, taken: Container[str]) -> str:
    """The name, numbered from 2 if it is taken."""
    number, candidate = 2, name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


def nearest(name: str, names: Iterable[str], limit: int = 3) -> str:
    """For an error message: the names closest to an unknown one, or all if none is close."""
    known = list(names)
    close = get_close_matches(name, known, n=limit, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    return f"there is {shown}" if known else "there is none"


def _snake(text: str) -> str:
    name = _NOT_NAME.sub("_", _WORD_START.sub("_", text)).strip("_").lower()
    return _not_keyword(f"op_{name}" if name[:1].isdigit() else name)


def _not_keyword(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
