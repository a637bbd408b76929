"""The secrets that one rollout has met, and their removal from everything that is stored or shown."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from app.records import Call, Json
from app.security.secret_spellings import SpellingSearch, may_be_cut

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
