"""The secrets that one rollout has met, and their removal from everything that is stored or shown.

They are found in every spelling in which code may print them. Case and separators do not count: `S-E-C-R-E-T`,
wrapped base64 and percent-encoding are found like the plain value; short ones, such as PINs, as whole words
only.
"""

import base64
import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt
import re2

from app.base.values import Call, Json

MASK: Final = "***"
_TELLING = re.compile(
    r"passw|passphrase|passcode|secret(?!ar)|token(?!iz)|api_?key|private_?key|access_?key|authorization|credential"
    r"|(?<![a-z])(?:pin|otp|cvv|cvc)(?![a-z])",
    re.IGNORECASE,
)
_HARMLESS = re.compile(  # names of details about a secret, in snake case
    r"^(?:max|min|num|has|is|expir\w*)_"
    r"|(?:^|_)(?:type|at|in|on|by|expir\w*|count|number|length|limit|ttl|lifetime|hint|changed|updated|created|used"
    r"|scheme|policy|enabled|required|status|strength|ur[il])$"
)
_ORDINARY = re.compile(  # and of what surrounds one
    r"^(?:id|name|user(?:_?name)?|e_?mail(?:_address)?|app|service|site|title|label|message|detail|state|error"
    r"|description|scopes?|roles?)$"
)
_NO_SECRET = re.compile(  # names of places in a list, and of numbers of tokens
    r"^(?:x_)?(?:(?:next|prev|previous|page|paging|pagination|continuation|continue|sync|start|starting|resume)_?)+token$"
    r"|^(?:total|prompt|completion|input|output|cached|reasoning|used|remaining)_?tokens$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLACEHOLDER = re.compile(r"[<{\[$*.x].*[>}\]*.x]$|\W+$", re.IGNORECASE)  # no repetition overlaps `.*`
_COMMON = re.compile(
    r"bearer|basic|digest|true|false|none|null|undefined|pass(?:word|wd)|secret|(?:access_)?token|api_?key|user(?:name)?"
    r"|string|default|example|admin|test|demo|guest|unknown|success|error",
    re.IGNORECASE,
)
_MIN_LENGTH = 4
_TOLD_CHARS = 4 << 20  # of the texts that calls have called secrets, kept to compare with
_ENTRY_CHARS = 100  # that one counts as besides
_IDS = frozenset({"context_ids", "sampled_ids", "logprobs"})

T = TypeVar("T")


class SecretValues:
    """Collects what fields and operations with a telling name contain, such as `password` or `show_tokens`.

    Every spelling of `SpellingSearch` is found. Where there are too many secrets to look for, each text counts as
    one. `own` are the secrets of the task and its project, `told` those that only a call has called one, by where
    they come from, up to a size: `cut` says that there were more.
    """

    def __init__(self, mask: str = MASK) -> None:
        self.own: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.cut = False
        self._told_left = _TOLD_CHARS
        self._mask = mask
        self._search = SpellingSearch()

    @property
    def known(self) -> bool:
        """There is something to mask."""
        return bool(self.own or self.told)

    def add(self, *texts: str, origin: str = "of a stored secret") -> None:
        """Count these texts as secrets of the project or the task, however they look."""
        for text in filter(None, texts):
            if self.told.pop(text, None) is None and text not in self.own:
                self._search.add(text)
            self.own[text] = origin

    def note(self, api: str, arguments: Mapping[str, Json], result: Json = None) -> None:
        """Add what one call was given and returned under telling names; without `api`, what the task was given."""
        given = [text for text in map(str, _leaves([*_told(arguments)])) if _is_secret(text)]
        returned = [*_told(result)]
        if is_telling(api) and not returned:
            returned = [*_unlabelled(result)]
        found = [text for text in map(str, _leaves(returned)) if _is_secret(text)]
        if not api:
            self.add(*given, origin="of a variable of the task")
        else:
            self._note(given, f"given to {api}")
        self._note(found, f"returned by {api}")

    def _note(self, texts: Sequence[str], origin: str) -> None:
        for text in texts:
            if text in self.own or text in self.told:
                continue
            self._search.add(text)
            size = len(text) + _ENTRY_CHARS
            if size <= self._told_left:
                self._told_left -= size
                self.told[text] = origin
            else:
                self.cut = True

    def note_call(self, call: Call) -> None:
        self.note(call.api, call.arguments, call.result)
        if call.response is not None:
            returned = map(str, _leaves([*_told(call.response.body)]))
            self._note([text for text in returned if _is_secret(text)], f"returned by {call.api}")

    def mask(self, text: str) -> str:
        """The same text with *** for each secret in it."""
        if not self.known:
            return text
        raw = _bytes(text)
        masked = self.mask_bytes(raw)
        return text if masked is raw else masked.decode("utf-8", "surrogatepass")

    def mask_bytes(self, data: bytes) -> bytes:
        """The same bytes with *** for each secret in them."""
        spans = self._search.spans(data) if self.known else []
        if not spans:
            return data
        kept, position = [], 0
        for start, end in spans:
            kept += [data[position:start], self._mask.encode()]
            position = end
        return b"".join([*kept, data[position:]])

    def mask_value(self, value: T) -> T:
        """The same JSON value or record with *** for each secret in its texts, keys and numbers.

        A list of texts and numbers that spell one together becomes ["***"]. Token ids stay as they are.
        """
        if not self.known or (isinstance(value, dict | list) and not self._may_hold(value)):
            return value
        masked: T = self._walk(value)
        return masked

    def mask_fields(self, data: Mapping[str, Json]) -> dict[str, Json]:
        """Like `mask_value`, for a mapping whose names are ours."""
        return {name: self.mask_value(value) for name, value in data.items()}

    def _may_hold(self, value: Json) -> bool:
        """False only if no text of the value holds a secret. One search in all is faster than one in each."""
        try:
            whole = msgspec.json.encode(value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return True
        return may_be_cut(whole) or bool(self._search.spans(whole))

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return value if isinstance(value, Enum) else self.mask(value)
        if isinstance(value, int | float):
            return self._mask if str(value) in self.own or str(value) in self.told else value
        if isinstance(value, list | tuple):
            masked = type(value)(map(self._walk, value))
            return [self._mask] if isinstance(masked, list) and self._spells_secret(masked) else masked
        if isinstance(value, dict):
            return {self._walk(name): self._walk(each) for name, each in value.items()}
        if isinstance(value, msgspec.Struct):
            changed = {
                name: masked
                for name in value.__struct_fields__
                if name not in _IDS and (masked := self.mask_value(given := getattr(value, name))) is not given
            }
            return msgspec.structs.replace(value, **changed)
        return value

    def _spells_secret(self, values: Sequence[Json]) -> bool:
        """Whether texts and numbers spell a secret together, such as the codes of its bytes."""
        if not all(isinstance(each, str | int) for each in values):
            return False
        return bool(self._search.spans(_bytes(" ".join(map(str, values)))))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def is_telling(name: str) -> bool:
    """Whether a field or an operation of this name holds secrets.

    >>> is_telling("access_token"), is_telling("supervisor.show_passwords"), is_telling("secretary.list_mails")
    (True, True, False)
    >>> is_telling("nextPageToken"), is_telling("total_tokens"), is_telling("pageToken.password")
    (False, False, True)
    """
    return _TELLING.search(name) is not None and _NO_SECRET.search(_snake(name).replace("-", "_")) is None


def is_ordinary(name: str) -> bool:
    """Whether a field of this name holds no secret even in the result of a telling operation.

    >>> is_ordinary("message"), is_ordinary("tokenType"), is_ordinary("value")
    (True, True, False)
    """
    return bool(_ORDINARY.search(_snake(name)) or _HARMLESS.search(_snake(name)))


def _told(value: Json) -> Iterator[Json]:
    """What a value holds under telling names."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not is_telling(name):
                yield from _told(each)
            elif not _HARMLESS.search(_snake(name)) and each not in (None, "", True, False):
                yield each
    elif isinstance(value, list):
        for each in value:
            yield from _told(each)


def _unlabelled(value: Json) -> Iterator[Json]:
    """What the result of a telling operation holds, except under ordinary names such as `message`."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not is_ordinary(name):
                yield from _unlabelled(each)
    elif isinstance(value, list):
        for each in value:
            yield from _unlabelled(each)
    else:
        yield value


def _snake(name: str) -> str:
    """
    >>> _snake("tokenType")
    'token_type'
    """
    return _CAMEL.sub("_", name).lower()


def _leaves(value: Json) -> Iterator[str | int | float]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _is_secret(text: str) -> bool:
    """Not a placeholder, nor a word that is found anywhere.

    >>> [_is_secret(text) for text in ("4711", "Bearer", "<password>", "***", "abc")]
    [True, False, False, False, False]
    """
    return len(text) >= _MIN_LENGTH and not _COMMON.fullmatch(text) and not _PLACEHOLDER.match(text)


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
