"""Full-text search over the sections of the manual, in memory."""

import math
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

_HEADING_WEIGHT = 4
_PREFIX_WEIGHT = 0.3  # weight of a prefix match
_K1, _B = 1.2, 0.75  # BM25, as Robertson and Zaragoza (2009) suggest
_CONTEXT = 90  # characters on each side of the first hit


class Entry(msgspec.Struct, frozen=True):
    """A section in the index."""

    page: str
    title: str  # of its page
    anchor: str
    heading: str
    text: str


class SearchHit(msgspec.Struct, frozen=True):
    entry: Entry
    excerpt: Sequence[tuple[str, bool]]  # pieces of the text; True: matches the query


class SearchIndex:
    """Sections ranked by BM25 over heading and text. Words of the query also match as prefixes."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._counts = [_count(entry) for entry in entries]
        self._mean = sum(map(Counter.total, self._counts)) / max(1, len(entries))

    def find(self, query: str, limit: int = 20) -> list[SearchHit]:
        """The sections with every word of the query, best first.

        >>> first, second = Entry("a", "A", "x", "Swap", "It is loaded."), Entry("b", "B", "y", "Roll", "Swaps")
        >>> index = SearchIndex([first, second])
        >>> [each.entry.anchor for each in index.find("swap")]
        ['x', 'y']
        >>> index.find("loaded")[0].excerpt
        [('It is ', False), ('loaded', True), ('.', False)]
        """
        words = _words(query)
        if not words:
            return []
        scores = [self._score(words, counts) for counts in self._counts]
        best = sorted((place for place, score in enumerate(scores) if score), key=lambda place: -scores[place])
        return [
            SearchHit(self._entries[place], _excerpt(self._entries[place].text, words)) for place in best[:limit]
        ]

    def _score(self, words: Sequence[str], counts: Counter[str]) -> float:
        """0.0 if a word is missing."""
        parts = []
        for word in words:
            here = _matches(word, counts)
            if not here:
                return 0.0
            holders = sum(_matches(word, each) > 0 for each in self._counts)
            rarity = math.log(1 + (len(self._entries) - holders + 0.5) / (holders + 0.5))
            parts.append(rarity * here * (_K1 + 1) / (here + _K1 * (1 - _B + _B * counts.total() / self._mean)))
        return sum(parts)


def _words(text: str) -> list[str]:
    """
    >>> _words("POST /v1/tasks, max_turns")
    ['post', 'v1', 'tasks', 'max', 'turns']
    """
    return re.findall(r"[^\W_]+", text.lower())


def _count(entry: Entry) -> Counter[str]:
    counts = Counter(_words(entry.text))
    for word in _words(f"{entry.heading} {entry.title}"):
        counts[word] += _HEADING_WEIGHT
    return counts


def _matches(word: str, counts: Counter[str]) -> float:
    """Prefix matches count too: `swap` finds `swaps`."""
    longer = sum(count for each, count in counts.items() if each != word and each.startswith(word))
    return counts[word] + _PREFIX_WEIGHT * longer


def _excerpt(text: str, words: Sequence[str]) -> list[tuple[str, bool]]:
    pattern = re.compile("|".join(rf"(?<![^\W_]){re.escape(word)}[^\W_]*" for word in words), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - _CONTEXT) if first else 0
    end = (first.end() if first else 0) + _CONTEXT
    shown = f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"
    pieces: list[tuple[str, bool]] = []
    rest = 0
    for match in pattern.finditer(shown):
        pieces += [(shown[rest : match.start()], False), (match[0], True)]
        rest = match.end()
    return [piece for piece in [*pieces, (shown[rest:], False)] if piece[0]]
