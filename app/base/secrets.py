"""The spellings in which code may print a secret, and the search for all of them at once, in linear time.

Case and separators do not count: texts are compared in lower case and without spaces and punctuation, so that
`S-E-C-R-E-T`, wrapped base64 and percent-encoding are found like the plain value. Short secrets, such as PINs, are
found only as whole words.
"""

import base64
import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import re2

_SEPARATORS = b" \t\r\n\f\v-_.,:;|/'\"+=%\\&#()[]{}<>*~`^$!?@"
_LOWER = bytes(range(256)).lower()
_IS_SEPARATOR = np.isin(np.arange(256), np.frombuffer(_SEPARATORS, dtype=np.uint8))
_SHORT = 8  # characters: shorter ones are found as whole words
_ANCHOR = 12  # bytes that the search looks for
_STEP = 48  # bytes from one anchor of a long spelling to the next
_ENOUGH = 24  # bytes of a long spelling that count as a find
_CUT_PREFIX = 4  # bytes of a spelling that are masked before a cut
_MAX_BYTES = 70_000  # of secrets, anchors and patterns: more would make the search slow
_MAX_FINDS = 10_000
_MAX_COMPARED = 500_000  # parts of spellings, with places in a text that begin like them
_CUTS = re.compile(rb"\n\[[\d,]+ characters cut\]|\n\[output cut after [\d,]+ characters\]|\.\.\.(?=\s|$)")
_HEAD_CUT = re.compile(rb"\[\d+ characters cut\]\n")
_ESCAPED_BLANKS = re.compile(rb"\\+(?:[fnrtv]|(?:u00|x)0[9a-d])")
_CUT_WINDOW = 1_024  # bytes beside a cut that may be a part of a secret

Span = tuple[int, int]
_Pattern: TypeAlias = "re2._Regexp[bytes] | None"


class SpellingSearch:
    """Finds the spellings of secrets in texts. Once they are too many to look for, each text is one."""

    def __init__(self) -> None:
        self._parts: dict[bytes, set[bytes]] = defaultdict(set)  # of spellings, by the anchors that begin them
        self._words: set[bytes] = set()  # patterns
        self._beginnings: dict[bytes, list[bytes]] = defaultdict(list)
        self._endings: dict[bytes, list[bytes]] = defaultdict(list)
        self._size = 0  # of what `_MAX_BYTES` limits
        self._compiled: tuple[_Pattern, _Pattern] | None = None  # anchors and words

    @property
    def too_many(self) -> bool:
        """Once true, it stays so, and further secrets take no time."""
        return self._size > _MAX_BYTES

    def add(self, value: str) -> None:
        """Look for this secret, too."""
        self._size += len(value)  # before its spellings: those of a long one take time
        if self.too_many:
            return
        self._compiled = None
        if len(value) < _SHORT:
            words = {*_word_patterns(value)}
            self._words |= words
            self._size += sum(map(len, words))
        for spelling in _spellings(value):
            self._add(spelling)

    def _add(self, spelling: bytes) -> None:
        self._beginnings[spelling[:_CUT_PREFIX]].append(spelling)
        self._endings[spelling[: -_CUT_PREFIX - 1 : -1]].append(spelling[::-1])
        for start in range(0, len(spelling), _STEP):
            anchor = spelling[start : start + _ANCHOR]
            if start == 0 or len(anchor) == _ANCHOR:
                self._size += 1 if anchor in self._parts else len(anchor)
                self._parts[anchor].add(spelling[start : start + _STEP + _ENOUGH])

    def spans(self, text: bytes) -> list[Span]:
        """Where the text holds secrets, in order and apart; all of it if there is too much to look for."""
        if self.too_many:
            return [(0, len(text))] if text else []
        found = self._all_finds(text)
        unescaped = _ESCAPED_BLANKS.sub(lambda match: b" " * len(match[0]), text) if b"\\" in text else text
        if unescaped != text:
            found += self._all_finds(unescaped)
        return [(0, len(text))] if len(found) > _MAX_FINDS else _merged(found)

    def _all_finds(self, text: bytes) -> list[Span]:
        if self._compiled is None:
            self._compiled = _any_of(map(re.escape, self._parts)), _any_of(self._words)
        anchors, words = self._compiled
        lower = text.translate(_LOWER)
        found = [*islice(self._cut_finds(lower), _MAX_FINDS + 1)] if may_be_cut(lower) else []
        if words is not None:
            found += [match.span() for match in words.finditer(lower)]
        if anchors is not None and (within := [*islice(self._finds(anchors, _bare(lower)), _MAX_FINDS + 1)]):
            places = _places(text)
            found += [(int(places[start]), int(places[end - 1]) + 1) for start, end in within]
        return found

    def _finds(self, anchors: "re2._Regexp[bytes]", bare: bytes) -> Iterator[Span]:
        """Spans in a text without separators. After too many comparisons, the rest of it is one."""
        position = compared = 0
        while match := anchors.search(bare, position):
            start = match.start()
            if compared > _MAX_COMPARED:
                yield start, len(bare)
                return
            position = start + 1
            for size in range(len(match.group()), _SHORT - 3, -1):  # the longest anchor may hide a shorter one
                parts = self._parts.get(bare[start : start + size], ())
                compared += 1 + len(parts)
                for part in parts:
                    if bare.startswith(part[:_ENOUGH], start):
                        yield start, start + _common(bare[start : start + len(part)], part)

    def _cut_finds(self, lower: bytes) -> Iterator[Span]:
        """What cuts have left of a secret: its beginning before a cut, its end after one."""
        for start, end in _between(_CUTS, lower)[:-1]:
            start = max(start, end - _CUT_WINDOW)
            if length := _cut_length(_bare(lower[start:end]), self._beginnings):
                places = start + _places(lower[start:end])
                yield int(places[-length]), int(places[-1]) + 1
        for start, end in _between(_HEAD_CUT, lower)[1:]:
            end = min(end, start + _CUT_WINDOW)
            if length := _cut_length(_bare(lower[start:end])[::-1], self._endings):
                places = start + _places(lower[start:end])
                yield int(places[0]), int(places[length - 1]) + 1


def may_be_cut(text: bytes) -> bool:
    """Whether a secret may end, or begin, in the middle."""
    return b"cut" in text or b"..." in text


def _bare(text: bytes) -> bytes:
    return text.translate(None, _SEPARATORS)


def _places(text: bytes) -> npt.NDArray[np.intp]:
    """Where the bytes of the bare text are in the text."""
    return np.flatnonzero(~_IS_SEPARATOR[np.frombuffer(text, dtype=np.uint8)])


def _between(pattern: re.Pattern[bytes], text: bytes) -> list[Span]:
    """The stretches before, between and after the matches."""
    matches = [match.span() for match in pattern.finditer(text)]
    return [*zip([0, *(end for _, end in matches)], [*(start for start, _ in matches), len(text)], strict=True)]


def _spellings(value: str) -> set[bytes]:
    """All spellings without separators, except of a short value's plain forms."""
    raw, turned = (each.encode("utf-8", "surrogatepass") for each in (value, value[::-1]))
    spelled = {raw.hex().encode(), b"".join(b"x%02x" % byte for byte in raw)}
    spelled |= {raw.hex().encode()[::-1], turned.hex().encode(), b"".join(b"0x%02x" % byte for byte in raw)}
    if len(value) >= _SHORT:
        plain = {
            value,
            value[::-1],
            value.upper(),
            value.casefold(),
            value.casefold()[::-1],
            json.dumps(value),
            json.dumps(value[::-1]),
        }
        plain |= {json.dumps(value, ensure_ascii=False), repr(value), html.escape(value), quote(value, safe="")}
        spelled |= {each.encode("utf-8", "surrogatepass") for each in plain}
        spelled |= {b"".join(form % byte for byte in raw) for form in (b"%d", b"%03o")}
        spelled.add("".join(str(ord(each)) for each in value).encode())
        spelled |= {repr(raw)[2:-1].encode(), b"".join(b"u%04x" % ord(each) for each in value)}
        spelled.update(_base64(raw))
        spelled.update(_base64(turned))
    bare = {each.translate(_LOWER, _SEPARATORS) for each in spelled}
    return {each for each in bare if len(each) >= _SHORT - 2}


def _base64(raw: bytes) -> Iterator[bytes]:
    """The characters that depend on these bytes alone, for each of the three alignments."""
    for shift, first in enumerate((0, 2, 3)):
        encoded = base64.b64encode(bytes(shift) + raw)
        yield encoded[first : (shift + len(raw)) * 8 // 6]


def _word_patterns(value: str) -> Iterator[bytes]:
    """Patterns of a short secret's spellings as whole words, in lower case."""
    raw = value.encode("utf-8", "surrogatepass")
    plain = {raw, raw[::-1], base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")}
    for each in plain:
        yield _whole_word(re.escape(each.translate(_LOWER)), each)
    if len(value) >= _SHORT - 2:
        between = b"[%s]{1,4}" % re.escape(_SEPARATORS)
        for each in (raw, raw[::-1]):
            spaced = between.join(re.escape(bytes([byte])) for byte in each.translate(_LOWER))
            yield _whole_word(spaced, each)


def _whole_word(pattern: bytes, word: bytes) -> bytes:
    left, right = (rb"\b" if re.fullmatch(rb"\w", word[at : at + 1 or None]) else b"" for at in (0, -1))
    return left + pattern + right


def _any_of(patterns: Iterable[bytes]) -> _Pattern:
    """One pattern for all of them, the longest first."""
    ordered = sorted(set(patterns), key=lambda each: (-len(each), each))
    if not ordered:
        return None
    options = re2.Options()
    options.max_mem = 64 << 20
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(b"|".join(ordered), options)


def _common(text: bytes, part: bytes) -> int:
    """How many bytes at the beginning are the same. The text is at most as long."""
    return next((at for at, byte in enumerate(text) if byte != part[at]), len(text))


def _cut_length(before: bytes, beginnings: dict[bytes, list[bytes]]) -> int:
    """How many bytes at the end are the beginning of a spelling."""
    for start in range(len(before) - _CUT_PREFIX + 1):
        tail = before[start:]
        if any(each.startswith(tail) for each in beginnings.get(tail[:_CUT_PREFIX], ())):
            return len(tail)
    return 0


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
