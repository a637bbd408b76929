"""Names for "did you mean": first those that say the same in other words' order, then those spelled alike.

People remember the words of a name, not their order, and letters alone find other words that look alike.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST = 100  # characters of a name that is compared
_SHARED = 0.5  # the least part of all words that two names share
_CLOSE = 0.8  # of letters


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
