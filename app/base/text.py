"""Text for people: what is foreign is made visible, unknown names lead to similar ones, counts have their nouns.

People remember the words of a name, not their order, and letters alone find other words that look alike.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from app.base.values import Json

_RANGES = (
    "\0\x08 \x0b\x0c \x0e\x1f \x7f\x9f "  # controls, which a terminal would obey
    "\u061c\u061c \u200e\u200f \u2028\u202e \u2066\u206f "  # of the direction of writing, and ends of lines
    "\u00ad\u00ad \u034f\u034f \u115f\u1160 \u17b4\u17b5 \u180b\u180f \u200b\u200d \u2060\u2065 \u3164\u3164 "
    "\ufe00\ufe0e \ufeff\ufeff \uffa0\uffa0 "
    "\u070f\u070f \u2800\u2800 \U00013430\U0001343f \U00016fe4\U00016fe4 "  # blank, or without a width,
    "\U0001d159\U0001d159 \ufff0\ufffb \U0001bca0\U0001bca3 \U0001d173\U0001d17a "  # but for their names
    "\U000e0000\U000e0fff"
)
_UNSEEN: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for each in _RANGES.split(" ")
    for code in range(ord(each[0]), ord(each[1]) + 1)
}
_RETURN = re.compile(r"\r(?!\n)")
_NO_EMOJI = re.compile(r"(?<![^\x00-\x7f])\ufe0f|(?<=\w)\ufe0f|(?<=\ufe0f)\ufe0f")  # not after a symbol
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST = 100  # characters of a name that is compared
_SHARED = 0.5  # the least part of all words that two names share
_CLOSE = 0.8  # of letters


def visible(text: str) -> str:
    r"""The text with what cannot be seen escaped: controls, and characters that turn text around or have no width.

    >>> visible("a\tb\n\x1b[2J")
    'a\tb\n\\x1b[2J'
    >>> visible("pay 98\u202e321\u200b")
    'pay 98\\u202e321\\u200b'
    """
    if "\ufe0f" in text:
        text = _NO_EMOJI.sub(r"\\ufe0f", text)
    if "\r" in text:
        text = _RETURN.sub(r"\\r", text)
    return text.translate(_UNSEEN)  # a function for each of a million would take seconds


def visible_value(value: Json) -> Json:
    """The same JSON value with `visible` texts and names."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(name): visible_value(each) for name, each in value.items()}
    return [visible_value(each) for each in value] if isinstance(value, list) else value


def shortened(text: str, chars: int) -> str:
    """
    >>> shortened("three mails", 8), shortened("mails", 8)
    ('three...', 'mails')
    """
    return text if len(text) <= chars else f"{text[: chars - 3]}..."


def same_words(name: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Those that share at least half of the words, or where one has all words of the other: the best ones alone.

    >>> same_words("task_max_seconds", ["max_task_seconds", "max_task_tokens", "port"])
    ['max_task_seconds']
    >>> same_words("mailList", ["list_mails", "send_mail"]), same_words("learning_rate", ["lora_rank", "lr"])
    (['list_mails'], ['lr'])
    """
    if len(name) > _LONGEST:
        return []
    scores = {each: _shared(name, each) for each in names if len(each) <= _LONGEST}
    best = max([_SHARED, *scores.values()])
    return sorted((each for each, score in scores.items() if score >= best), key=lambda each: (len(each), each))[
        :limit
    ]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """As a question, or "" where none is similar.

    >>> did_you_mean("stepz", ["steps", "seed"]), did_you_mean("x", ["steps"])
    ('did you mean steps?', '')
    """
    known = list(names)
    found = same_words(name, known) or get_close_matches(name[:_LONGEST], known, cutoff=_CLOSE)
    return f"did you mean {' or '.join(found)}?" if found else ""


def _shared(name: str, other: str) -> float:
    one, two = _words(name), _words(other)
    if not one or not two:
        return 0.0
    if _initials(name) == other.lower() or _initials(other) == name.lower():
        return 1.0
    if one <= two or two <= one:
        return max(_SHARED, len(one & two) / len(one | two))
    return len(one & two) / len(one | two)


def _words(name: str) -> frozenset[str]:
    """In lower case and the singular."""
    return frozenset(word.lower().removesuffix("s") for word in _PART.findall(name))


def _initials(name: str) -> str:
    """Of several words."""
    parts = _PART.findall(name)
    return "".join(part[0].lower() for part in parts) if len(parts) > 1 else ""


def numbered(count: int, noun: str) -> str:
    """The noun is one whose plural ends in -s.

    >>> numbered(1, "host"), numbered(0, "call"), numbered(12_000, "token")
    ('1 host', '0 calls', '12,000 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
