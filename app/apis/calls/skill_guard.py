"""Traces the values that a skill passes to an API back to what it was given and to what it read. Pure.

Texts are compared without case, as wholes, as parts of one another and word by word. Encodings are not undone: an
encoded text is `computed`. So are fractions, many flags, punctuation, blanks and changes of case that nothing
explains: they could spell a value. Few of them, and small numbers, have a budget, see `small_values`. The work is
bounded for each skill of a rollout: results that are too large to index, and arguments that take too long to
search, count as everything that was read.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from typing import Final, NamedTuple

from app.base.values import Json
from app.gateway.skill_manifest import COMPUTED, CONSTANT, NUMBER, PARAMETER, RESULT
from app.gateway.small_values import SMALL, SmallValues

_SHORT = 4  # texts with fewer characters coincide by chance
_FEW = 8  # values of one argument, each of which says little: more of them spell something
_INDEXED_CHARS = 1 << 20
_INDEXED_VALUES = 100_000
_SEARCHED_CHARS = 20_000  # of one text
_SEARCH = 1 << 31  # characters compared, which takes about a second
_STEP = 250  # as many characters take as long as one comparison of Python
_VALUE = 10_000  # or as one value
_WORD = re.compile(r"\w+")
_BLANKS = re.compile(r"\s+")
_MARKS = re.compile(r"[^\w\s]+|\s{4,}")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d[\d:.z+-]*)?")
_YEAR = re.compile(r"\d{1,4}")
_EMPTY, _SEEN = "e", "s"
_NOTHING: Final = frozenset[str]()


class Trace(NamedTuple):
    """The possible origins of a part of an argument. `also` are those that a small number coincides with.

    A number, or a few marks, may pass whatever they are, see `small_values`.
    """

    origins: frozenset[str]
    also: frozenset[str] = frozenset()
    number: float | None = None
    marks: str = ""

    def is_permitted(self, allowed: Set[str]) -> bool:
        return bool((self.origins | self.also) & allowed)


class _SearchSpentError(Exception):
    """Too much has been searched."""


class ValueOrigins:
    """The values that a skill has met in a rollout, by origin."""

    def __init__(self) -> None:
        self._whole: defaultdict[str, set[str]] = defaultdict(set)  # text -> origins
        self._words: defaultdict[str, set[str]] = defaultdict(set)
        self._numbers: defaultdict[float, set[str]] = defaultdict(set)
        self._texts: defaultdict[str, list[str]] = defaultdict(list)  # origin -> its texts
        self._joined: dict[str, str] = {}
        self._lengths: set[int] = set()  # of the texts
        self._oversized: set[str] = set()  # origins of which texts were not indexed
        self._uncounted: set[str] = set()  # origins of which numbers were not
        self._blanks: set[str] = set()  # as `_blanks_in` finds them
        self._spelled: set[str] = set()  # words, with their case
        self._chars_left = _INDEXED_CHARS
        self._values_left = _INDEXED_VALUES
        self._search_left = _SEARCH
        self.small = SmallValues()

    def add(self, origin: str, value: Json) -> None:
        """Record a value that came from `origin`."""
        self._joined.pop(origin, None)
        if origin != CONSTANT:
            self.small.read(origin, value)
        for leaf in _leaves(value):
            self._values_left -= 1
            if self._values_left < 0:
                self._oversized.add(origin)
                self._uncounted.add(origin)
                return
            if not isinstance(leaf, str):
                self._numbers[_float(str(leaf))].add(origin)
            elif len(leaf) > self._chars_left:
                self._oversized.add(origin)
            else:
                self._chars_left -= len(leaf)
                self._blanks.update(_blanks_in(leaf), (each for _, each in _margins_of(leaf)))
                self._spelled.update(_WORD.findall(leaf))
                self._add_text(origin, leaf.casefold().strip())

    def trace(self, value: Json) -> list[Trace]:
        """One entry for each part of an argument: a number, a text, or a word of a text that was put together."""
        try:
            found = [each for leaf in _leaves(value) for each in self._trace(leaf)]
        except _SearchSpentError:
            return list(self._all_read())
        if len(self.form_of(value)) > _FEW:
            found.append(Trace(frozenset({COMPUTED})))
        return found

    def form_of(self, value: Json) -> str:
        """What a value could tell beside its words and numbers: a letter for each flag, null and empty value, the
        blanks that no value has that was seen, and where words change from the case in which they were seen.
        """
        texts = [each for each in _leaves(value) if isinstance(each, str)]
        found = [flags_of(value)]
        found += (margins for margins, _ in groupby(map(self._margins_of, texts)))
        for text in texts:
            found += [] if text else [_EMPTY]
            found += (each for each in _blanks_in(text) if each not in self._blanks)
            found += (case for case, _ in groupby(map(self._case_of, _WORD.findall(text))))
        return "".join(found)

    def is_given(self, number: float) -> bool:
        """Whether the skill was given a number, or has it in its source."""
        return not self._numbers.get(number, _NOTHING).isdisjoint({PARAMETER, CONSTANT})

    def _margins_of(self, text: str) -> str:
        """The blanks before and after a text, with a letter in place of those that were seen."""
        return "".join(place + (_SEEN if each in self._blanks else each) for place, each in _margins_of(text))

    def _case_of(self, word: str) -> str:
        """Nothing for a word as it was seen, a letter for a case that all words can have, or else the word."""
        if word in self._spelled or word.lower() == word.upper():
            return ""
        cases = {word.lower(): "l", word.upper(): "u", word.capitalize(): "c"}
        return cases.get(word, word)

    def _add_text(self, origin: str, text: str) -> None:
        self._whole[text].add(origin)
        self._lengths.add(len(text))
        self._texts[origin].append(text)
        for word in _WORD.findall(text):
            self._words[word].add(origin)
        for number in _numbers_in(text, whole=origin.startswith(RESULT)):
            self._numbers[_float(number)].add(origin)

    def _trace(self, leaf: str | float) -> Iterator[Trace]:
        self._spend(_VALUE)
        if not isinstance(leaf, str):
            yield from self._trace_number(_float(str(leaf)))
            return
        text = leaf.casefold().strip()
        if not text:
            return
        if whole := self._containing(text):
            coincidence = len(text) < _SHORT or _DATE.fullmatch(text)
            given = whole & {PARAMETER, CONSTANT}
            yield Trace(frozenset(whole | {COMPUTED} if coincidence and not given else whole))
        elif len(text) > _SEARCHED_CHARS:
            yield from self._all_read()
        else:
            yield from self._trace_parts(text)

    def _all_read(self) -> Iterator[Trace]:
        """What is too large to be searched may have come from anything that was read."""
        return _each({*self._texts, *self._oversized, *self._uncounted, COMPUTED} - {PARAMETER, CONSTANT})

    def _trace_number(self, number: float) -> Iterator[Trace]:
        """A small number coincides with some result too often to be traced to one."""
        found = frozenset(self._numbers.get(number, _NOTHING))
        if number.is_integer() and abs(number) < SMALL:
            given = found & {PARAMETER, CONSTANT}
            unexplained = {NUMBER} if found > given or not given else set()
            yield Trace(given | unexplained, found | {COMPUTED}, number)
        elif found:
            yield Trace(found, number=number)
        else:
            number_of = number if number.is_integer() else None
            yield from (each._replace(number=number_of) for each in _each({COMPUTED, *self._uncounted}))

    def _containing(self, text: str) -> set[str]:
        """The origins of which a text equals this one, or has it as a part."""
        found = set(self._whole.get(text, ()))
        if len(text) >= _SHORT:
            found |= {origin for origin in self._texts if self._holds(origin, text)}
        return found

    def _trace_parts(self, text: str) -> Iterator[Trace]:
        """A text that was put together: the results in it, and its other words."""
        rest = text
        for part in self._results_in(text):
            if part in rest:
                rest = rest.replace(part, " ")
                yield Trace(frozenset(self._whole[part]))
        for word in set(_WORD.findall(rest)):
            found = self._words.get(word, set())
            coincidence = len(word) < _SHORT or _YEAR.fullmatch(word)
            if not found:
                yield from _each({COMPUTED, *self._oversized})
            elif coincidence and not found & {PARAMETER, CONSTANT}:
                yield Trace(frozenset({COMPUTED, *found}))
            else:
                yield Trace(frozenset(found))
        yield from self._trace_marks(rest)

    def _trace_marks(self, text: str) -> Iterator[Trace]:
        """Punctuation and blanks, unless the values that were seen contain them."""
        marks = _MARKS.findall(text)
        seen = set()
        if _WORD.search(text):
            seen = {each for each in set(marks) if any(self._holds(origin, each) for origin in self._texts)}
        if unseen := [each for each in marks if each not in seen]:
            together = "".join(unseen)
            yield Trace(frozenset({COMPUTED}), marks=together if len(together) < _SHORT else "")

    def _results_in(self, text: str) -> list[str]:
        """The longest first; not those that the skill was given as well."""
        steps = len(text) * len(self._lengths)
        self._spend(min(len(self._whole), steps) * (_STEP + len(text)))
        if len(self._whole) <= steps:
            candidates = {known for known in self._whole if known in text}
        else:
            pieces = (text[at : at + size] for size in self._lengths for at in range(len(text) - size + 1))
            candidates = {piece for piece in pieces if piece in self._whole}
        parts = [each for each in candidates if len(each) >= _SHORT and not _DATE.fullmatch(each)]
        return sorted((each for each in parts if not self._is_given(each)), key=len, reverse=True)

    def _is_given(self, text: str) -> bool:
        return any(self._holds(origin, text) for origin in (PARAMETER, CONSTANT))

    def _holds(self, origin: str, text: str) -> bool:
        """Whether a text of this origin contains this one."""
        if origin not in self._joined:
            self._joined[origin] = "\0".join(self._texts.get(origin, ()))
        self._spend(_STEP + len(self._joined[origin]))
        return text in self._joined[origin]

    def _spend(self, chars: int) -> None:
        self._search_left -= chars
        if self._search_left < 0:
            raise _SearchSpentError


def _each(origins: Iterable[str]) -> Iterator[Trace]:
    """A part that may have come from all of these."""
    return (Trace(frozenset({origin})) for origin in sorted(origins))


def _margins_of(text: str) -> list[tuple[str, str]]:
    """The blanks at the start of a text, and at its end."""
    start = text[: len(text) - len(text.lstrip())]
    end = text[len(text.rstrip()) :] if len(start) < len(text) else ""
    return [(place, each) for place, each in (("<", start), (">", end)) if each]


def _blanks_in(text: str) -> list[str]:
    """All but single spaces between words."""
    return [each for each in _BLANKS.findall(text.strip()) if each != " "]


def flags_of(value: Json) -> str:
    """One letter for each of the values in a value that is a flag, null, or an empty list or mapping."""
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, bool) or each in (None, [], {}):
            found.append(str(each)[:1])
        elif isinstance(each, (list, tuple, dict)):
            waiting += each.values() if isinstance(each, dict) else each
    return "".join(found)


def _leaves(value: Json) -> Iterator[str | float]:
    """The texts and numbers of a value, in order, the names in it included; no booleans."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += reversed([*each.values(), *each])
        elif isinstance(each, (list, tuple)):
            waiting += reversed(each)
        elif isinstance(each, str) or (isinstance(each, (int, float)) and not isinstance(each, bool)):
            yield each


def _numbers_in(text: str, *, whole: bool) -> list[str]:
    """The numbers in a text, or only the text itself: the digits of tokens and dates would explain any number."""
    if whole:
        return [text] if _NUMBER.fullmatch(text) else []
    return _NUMBER.findall(text)


def _float(number: str) -> float:
    return float(number.replace(",", ""))
