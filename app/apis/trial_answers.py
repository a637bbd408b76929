"""Whether an answer to a question of a trial is right: in any usual form, but never with another number. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from app.base.values import Json

_MOST_CHARS: Final = 400  # of an answer in words
_NUMBER: Final = re.compile(r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,]\d)")
_WORD: Final = re.compile(r"\w+")


def is_right(right: Json, given: Json, *, asked: str = "", others: Sequence[str] = ()) -> bool:
    """Whether `given` says what is `right`, a number or a text.

    A text may surround it, unless it names another number, that is not one `asked` about, or one of the `others`,
    which would be as good an answer to somebody who does not know.

    >>> [is_right(42, each) for each in (42, 42.0, "42", "42 tickets", "There are 42.", {"count": 42}, [42])]
    [True, True, True, True, True, True, True]
    >>> [is_right(42, each) for each in (41, True, "41", "420", "4.2", "42 of 50", "41, or 42", None, [41, 42])]
    [False, False, False, False, False, False, False, False, False]
    >>> is_right("high", "Its priority is HIGH.", others=["low"]), is_right("high", "high or low", others=["low"])
    (True, False)
    >>> is_right(42, "Ticket 7 has 42", asked="How many replies has ticket 7?")
    True
    """
    given = _only(given)
    if given is None or isinstance(given, bool | dict | list):
        return False
    if isinstance(right, int | float):
        return _is_number(right, given, asked)
    return _is_text(str(right), str(given), asked, others)


def _only(value: Json) -> Json:
    """The value in a list or an object of one."""
    for _ in range(3):
        if isinstance(value, dict) and len(value) == 1:
            [value] = value.values()
        elif isinstance(value, list) and len(value) == 1:
            [value] = value
    return value


def _is_number(right: float, given: str | float, asked: str) -> bool:
    if isinstance(given, int | float):
        return _same(right, given)
    if len(given) > _MOST_CHARS:
        return False
    named, known = _numbers(given), _numbers(asked)
    right_ones = [each for each in named if _same(right, each)]
    return bool(right_ones) and all(_same(right, each) or each in known for each in named)


def _numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in _NUMBER.findall(text)]


def _same(one: float, other: float) -> bool:
    try:
        return one == other or abs(one - other) <= 1e-9 * max(1.0, abs(one))
    except OverflowError:  # integers may be larger than any other number
        return False


def _is_text(right: str, given: str, asked: str, others: Sequence[str]) -> bool:
    if len(given) > _MOST_CHARS + len(right):
        return False
    wanted, said, instant = _plain(right), _plain(given), _at(right)
    if said == wanted or (instant is not None and instant == _at(given.strip())):
        return True
    if not _WORD.search(wanted) or not _names(said, wanted):
        return False
    if re.search(r"\d", wanted) and set(_numbers(said.replace(wanted, " "))) - set(_numbers(asked)):
        return False
    return not any(_names(said, _plain(other)) for other in others if other != right)


def _names(said: str, wanted: str) -> bool:
    """As whole words."""
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", said) is not None


def _plain(text: str) -> str:
    """
    >>> _plain(' "Ann   Smith".')
    'ann smith'
    """
    return re.sub(r"\s+", " ", text.casefold()).strip(" \t\n\"'`*.!")


def _at(text: str) -> datetime | None:
    """The instant that a text names; None for anything else, a number above all."""
    if "-" not in text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
