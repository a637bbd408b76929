"""Finds the operations of one app that fit a query: by words, their beginnings and their n-grams. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakKeyDictionary

from app.apis.catalog import App, Operation
from app.apis.query_words import KIND_OF, OperationQuery
from app.apis.words import is_beginning, singular, split_words

_WEIGHTS: Mapping[str, float] = {
    "name": 4.0,
    "summary": 3.0,
    "path": 2.0,
    "app": 2.0,
    "tags": 1.0,
    "description": 0.7,
}
_FIELD_CHARS = {"description": 400}
_TEXT_CHARS = 2_000  # of any other field
_INDEXED_CHARS = 4_000_000  # of an app
_SATURATION = 3.0  # weight at which a word counts half of what it can
_PREFIX_WORTH = 0.7  # of a word that begins as another does: repo, repository
_SIMILAR = 0.6  # share of n-grams that a misspelled word has in common
_SIMILAR_WORTH = 0.5
_SAME_KIND, _OTHER_KIND = 1.4, 0.55
_AS_MANY, _NOT_AS_MANY = 1.15, 0.9
_COVERED = 0.7  # how much of the worth depends on whether the query names all that the name does
_ACTING = {"change", "start", ""}
_OF_METHOD = {"GET": "read", "HEAD": "read", "QUERY": "read", "DELETE": "remove", "PUT": "change"}
_INDEXES: WeakKeyDictionary[App, "OperationIndex"] = WeakKeyDictionary()


class OperationIndex:
    """Made once for an app. A search takes time by the number of operations that share a word with the query."""

    def __init__(self, app: App) -> None:
        self._operations = list(app.operations.values())
        self._postings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._named: list[frozenset[str]] = []
        self._verbs: list[str] = []
        self._left = _INDEXED_CHARS
        self._kinds: list[str] = []
        for number, operation in enumerate(self._operations):
            self._add(number, operation)
        self._grams = {word: _ngrams(word) for word in self._postings}

    def search(self, query: OperationQuery) -> Iterator[tuple[float, Operation]]:
        """Operations that share a word with the query, in the order of the document, with their worth."""
        worth: defaultdict[int, float] = defaultdict(float)
        matched: defaultdict[int, set[str]] = defaultdict(set)
        for term, meant in query.terms.items():
            best: dict[int, float] = {}
            for word, share in self._matching(term):
                most = meant * share * math.log(1 + len(self._operations) / len(self._postings[word]))
                for number, weight in self._postings[word].items():
                    best[number] = max(best.get(number, 0.0), most * weight / (weight + _SATURATION))
                    matched[number].add(word)
            for number, each in best.items():
                worth[number] += each
        for number in sorted(worth):
            yield worth[number] * self._fit(number, matched[number], query), self._operations[number]

    def _add(self, number: int, operation: Operation) -> None:
        for field, text in _fields(operation):
            text = text[: min(self._left, _FIELD_CHARS.get(field, _TEXT_CHARS))]
            self._left -= len(text)
            for word in set(map(singular, split_words(text))):
                posting = self._postings[word]
                posting[number] = posting.get(number, 0.0) + _WEIGHTS[field]
        verb, *named = operation.name.split("_")
        kind = KIND_OF.get(verb) or _OF_METHOD.get(operation.method.replace("PATCH", "PUT"), "")
        self._verbs.append(verb)
        self._kinds.append("count" if "count" in (verb, *named) else kind)
        self._named.append(frozenset(map(singular, named)))

    def _matching(self, term: str) -> Iterator[tuple[str, float]]:
        """Words of the app that mean a term of a query, and how much of it they are worth."""
        if term in self._postings:
            yield term, 1.0
        grams, alike = _ngrams(term), False
        for word in self._postings:
            if is_beginning(word, term):
                alike = True
                yield word, _PREFIX_WORTH
        if term in self._postings or alike:
            return
        for word, known in self._grams.items():
            if 2 * len(grams & known) >= _SIMILAR * (len(grams) + len(known)):
                yield word, _SIMILAR_WORTH

    def _fit(self, number: int, matched: set[str], query: OperationQuery) -> float:
        """How well the rest of the operation fits: its verb, whether it returns many, what else its name says."""
        kind, named = self._kinds[number], self._named[number]
        fit = _fit_of_kind(kind, query.kind) if self._verbs[number] != query.verb else _SAME_KIND
        if kind == "read":
            fit *= _AS_MANY if query.many == _is_many(self._operations[number]) else _NOT_AS_MANY
        covered = len(named & matched) / len(named) if named else 1.0
        return fit * (1 - _COVERED + _COVERED * covered)


def _fit_of_kind(kind: str, wanted: str) -> float:
    """A verb of no kind, as in "comment on an issue", mostly makes something."""
    if not wanted:
        return 1.0
    if wanted == "act":
        return _SAME_KIND if kind == "create" else 1.0 if kind in _ACTING else _OTHER_KIND
    return _SAME_KIND if kind == wanted else _OTHER_KIND


def _fields(operation: Operation) -> Iterator[tuple[str, str]]:
    yield "name", operation.name
    yield "app", operation.app
    yield "summary", operation.summary
    yield "path", operation.path
    yield "tags", " ".join(operation.tags)
    yield "description", operation.description


def _is_many(operation: Operation) -> bool:
    verb, *named = operation.name.split("_")
    return verb == "list" or "items" in operation.returns or any(singular(word) != word for word in named[-1:])


def _ngrams(word: str) -> frozenset[str]:
    padded = f" {word} "
    return frozenset(padded[start : start + 3] for start in range(len(padded) - 2))


def index_of(app: App) -> OperationIndex:
    """Made at the first search, and kept as long as the app is."""
    index = _INDEXES.get(app)
    if index is None:
        index = _INDEXES[app] = OperationIndex(app)
    return index


def ranked(indexes: Iterable[OperationIndex], query: OperationQuery, limit: int) -> list[Operation]:
    """The best of several apps, the best first."""
    found = [each for index in indexes for each in index.search(query)]
    return [operation for _, operation in sorted(found, key=lambda each: -each[0])[:limit]]
