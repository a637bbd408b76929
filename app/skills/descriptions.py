"""Finds skills by descriptions of them: those that have most of what a request asks for. In memory.

A description has more words than a request, so the two are not alike; but the words of the request are among them.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from app.apis.naming import beginning, is_beginning
from app.skills.ngrams import ngrams

_WORD = re.compile(r"\w+")
_CHARS = 10_000
_TERMS = 40  # of a request
_BEGINS = 0.7  # worth of a word that begins as another does: scale, scales
_FEWEST = 2  # words that a skill shares with a request
_ASKING = frozenset(
    _WORD.findall(
        "about also and as at be been but by find from get give he her him his how if in into it its let list many"
        " much need no nor not off on or out she show so tell than their them then they to up use want what when"
        " where which who whom whose why with"
    )
)
Key = TypeVar("Key", bound=Hashable)


def document_of(name: str, description: str) -> str:
    """What is compared with requests: the name of a function says what it does, too."""
    return f"{name.replace('_', ' ').capitalize()}. {description}"


class DescriptionIndex(Generic[Key]):
    def __init__(self) -> None:
        self._words: dict[Key, frozenset[str]] = {}
        self._having: defaultdict[str, dict[Key, None]] = defaultdict(dict)
        self._alike: defaultdict[str, dict[str, None]] = defaultdict(dict)  # the words, by how they begin

    def __contains__(self, key: Key) -> bool:
        return key in self._words

    def __bool__(self) -> bool:
        return bool(self._words)

    def add(self, key: Key, name: str, description: str) -> None:
        """Replaces a known key."""
        self.remove(key)
        self._words[key] = _stems(document_of(name, description)[:_CHARS])
        for word in self._words[key]:
            self._having[word][key] = None
            self._alike[beginning(word)][word] = None

    def remove(self, key: Key) -> None:
        """An unknown key is ignored."""
        for word in self._words.pop(key, ()):
            del self._having[word][key]
            if not self._having[word]:
                del self._having[word]
                del self._alike[beginning(word)][word]

    def search(self, request: str, limit: int, is_visible: Callable[[Key], bool]) -> list[tuple[Key, float]]:
        """The visible keys with the largest share of the request's words, rare ones counting for more; best first.

        Numbers, and names that no description has, are details of the request: they do not count.
        """
        total, worth, shared = 0.0, defaultdict[Key, float](float), defaultdict[Key, int](int)
        for term, is_detail in _terms(request[:_CHARS]).items():
            matched: dict[Key, float] = {}
            alike = self._alike.get(beginning(term), ())
            for word in [each for each in alike if each == term or is_beginning(each, term)]:
                for key in self._having[word]:
                    matched[key] = max(matched.get(key, 0.0), 1.0 if word == term else _BEGINS)
            if is_detail and not matched:
                continue
            weight = math.log(1 + len(self._words) / max(len(matched), 1))
            total += weight
            for key, share in matched.items():
                worth[key] += weight * share
                shared[key] += 1
        found = [
            (key, value / total) for key, value in worth.items() if shared[key] >= _FEWEST and is_visible(key)
        ]
        return sorted(found, key=lambda each: -each[1])[:limit]


def _terms(request: str) -> dict[str, bool]:
    """The words of a request, and whether one is written like a name."""
    terms: dict[str, bool] = {}
    for number, word in enumerate(_WORD.findall(request)):
        for stem in _stems(word):
            if not word.isdigit() and len(terms) < _TERMS:
                terms.setdefault(stem, number > 0 and word[0].isupper())
    return terms


def _stems(text: str) -> frozenset[str]:
    return ngrams(text, (1,)) - _ASKING
