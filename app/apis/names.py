"""Python identifiers for the names in a document."""

import keyword
import re
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from heapq import nlargest

from app.base.text import same_words

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_NAME = re.compile(r"[^0-9A-Za-z]+")
_OPERATORS = {
    "<=": "lte", ">=": "gte", "!=": "ne", "<>": "ne", "==": "eq", "<": "lt", ">": "gt", "!": "not", "=": "eq",
    "~": "like", "+": "plus", "-": "minus",
}  # fmt: skip
_OPERATOR = re.compile(r"<=|>=|!=|<>|==|[<>!=~]|^[+-]|[+-]$")  # that tell names apart
_CLOSE = 0.5
_COMPARED = 5_000  # names that an unknown one is compared with, roughly at first
_COMPARED_CHARS = 100
_COMPARISON_STEPS = 1_000_000  # products of the lengths: 100 names of 100 characters, 1,600 of 25


def operation_name(operation_id: str, method: str, path: str) -> str:
    """The operationId in snake case; method and path if that leaves nothing.

    >>> operation_name("fetchHTTPMails", "GET", "/mails"), operation_name("", "GET", "/mails/{id}")
    ('fetch_http_mails', 'get_mails_id')
    """
    return _snake(operation_id) or _snake(f"{method.lower()} {path}")


def argument_name(wire_name: str) -> str:
    """The name itself if it is a valid identifier, otherwise the nearest valid one.

    >>> [argument_name(name) for name in ("userId", "X-Trace", "from", "filter[tag]", "2fa", "a<", "b[>=]")]
    ['userId', 'X_Trace', 'from_', 'filter_tag', 'x_2fa', 'a_lt', 'b_gte']
    """
    if wire_name.isascii() and wire_name.isidentifier() and not wire_name.startswith("_"):
        return _not_keyword(wire_name)
    spelled = _OPERATOR.sub(lambda found: f"_{_OPERATORS[found[0]]}_", wire_name)
    name = _NOT_NAME.sub("_", spelled).strip("_") or "argument"
    return _not_keyword(f"x_{name}" if name[0].isdigit() else name)


def valid_name(words: str) -> str:
    """Words joined by underscores, as an identifier.

    >>> [valid_name(words) for words in ("list_mails", "2fa", "class")]
    ['list_mails', 'op_2fa', 'class_']
    """
    return _not_keyword(f"op_{words}" if words[:1].isdigit() else words)


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


def nearest(name: str, names: Iterable[str], limit: int = 3, *, otherwise: Callable[[], str] | None = None) -> str:
    """For an error message: the names closest to an unknown one, else what `otherwise` finds, or all."""
    known = list(names)
    if close := same_words(name, known[:_COMPARED], limit) or _close(name, known[:_COMPARED], limit):
        return "did you mean " + " or ".join(close) + "?"
    if otherwise is not None and (found := otherwise()):
        return found
    shown = ", ".join(each[:_COMPARED_CHARS] for each in known[:20]) + (", ..." if len(known) > 20 else "")
    return f"there is {shown}" if known else "there is none"


def _close(name: str, names: Iterable[str], limit: int) -> list[str]:
    """As `difflib.get_close_matches` finds them, at limited cost: hostile names all resemble one another."""
    matcher, scored, left = SequenceMatcher(b=name), [], _COMPARISON_STEPS
    for each in names:
        if max(len(name), len(each)) > _COMPARED_CHARS:
            continue
        matcher.set_seq1(each)
        if matcher.real_quick_ratio() >= _CLOSE and matcher.quick_ratio() >= _CLOSE:
            left -= len(name) * len(each)
            if left < 0:
                break
            if (ratio := matcher.ratio()) >= _CLOSE:
                scored.append((ratio, each))
    return [each for _, each in nlargest(limit, scored)]


def _snake(text: str) -> str:
    return valid_name(_NOT_NAME.sub("_", _WORD_START.sub("_", text)).strip("_").lower())


def _not_keyword(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
