"""What real answers teach a double: which fields really come, of which form and how often, and texts like theirs.
Pure.

Nothing personal is kept, and no secret: of a field with such a name only the form stays, and a text of its own
is kept only if several records share it, as they share a state or a label.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from app.apis.double import texts
from app.apis.double.model import Collection, Model
from app.apis.double.shapes import Schema, fields_of, flat, kind_of, value_at
from app.apis.words import split_words
from app.records import Json
from app.security.secret_values import is_telling

_ROWS: Final = 200  # of one answer that are looked at
_SHARED: Final = 2  # records that have the same text, for it to be kept
_CHARS: Final = 40  # of a text that is kept
_WORDS: Final = 3  # of such a text
_VALUES: Final = 20  # of one field that are kept
_PERSONAL: Final = re.compile(
    r"e_?mail|phone|mobile|fax|address|street|postal|zip|birth|\bdob\b|ssn|passport|iban|card|tax|salary|gender|\bip\b"
    r"|first_?name|last_?name|full_?name|user_?name|login|owner|author|assignee|creator|person|contact|latitude|longitude|customer|client|patient|recipient|sender|member|employee"
    r"|manager|reporter|guest|user|^name$"
)
_FORMS: Final = (
    ("uuid", re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("date-time", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d.*")),
    ("date", re.compile(r"\d{4}-\d\d-\d\d")),
    ("email", re.compile(r"[^@\s]+@[^@\s]+\.\w+")),
    ("uri", re.compile(r"https?://\S+")),
)

IsSecret = Callable[[str], bool]


class Sample(msgspec.Struct, frozen=True):
    """What the real server answered an operation with, by name."""

    operation: str
    value: Json


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one field: `values` are those that records share, `code` a text of its form, made up."""

    share: float  # of the records that have it
    null: float = 0.0  # of those, the share without a value
    form: str = ""  # a format such as `uuid`
    values: tuple[Json, ...] = ()
    code: str = ""
    low: float | None = None  # of numbers
    high: float | None = None


class Sampled(msgspec.Struct, frozen=True):
    """Of each collection that answers were read of: the fields in lists, and those of single records."""

    lists: Mapping[str, Mapping[str, Seen]] = {}
    items: Mapping[str, Mapping[str, Seen]] = {}

    def fields(self, collection: str) -> Mapping[str, Seen]:
        """What is known of the records of a collection; lists show more of them than single reads do."""
        return {**self.items.get(collection, {}), **self.lists.get(collection, {})}

    def left_out(self, collection: Collection, *, lists: bool) -> frozenset[str]:
        """The fields that lists, or single records, lack though the document promises them, as far as was read."""
        seen = (self.lists if lists else self.items).get(collection.name)
        promised = frozenset(fields_of(collection.item)) - {collection.key}
        return frozenset() if seen is None else promised - seen.keys()


def sampled(model: Model, samples: Sequence[Sample], is_secret: IsSecret = lambda _: False) -> Sampled:
    """What the samples of lists and single records show. Those of other operations are passed over."""
    lists: dict[str, list[dict[str, Json]]] = {}
    items: dict[str, list[dict[str, Json]]] = {}
    for each in samples:
        made = model.operations.get(each.operation)
        if made is None or made.shape is None or made.role not in ("list", "get"):
            continue
        found = value_at(each.value, made.shape.keys)
        rows = found.values() if made.shape.holds == "map" and isinstance(found, dict) else found
        rows = (
            [found] if made.role == "get" else list(rows) if not isinstance(rows, str) and rows is not None else []
        )
        kept = [row for row in rows[:_ROWS] if isinstance(row, dict)]
        (items if made.role == "get" else lists).setdefault(made.collection, []).extend(kept)
    return Sampled(
        {name: _fields(rows, is_secret) for name, rows in lists.items() if rows},
        {name: _fields(rows, is_secret) for name, rows in items.items() if rows},
    )


def drawn(seen: Seen, schema: Schema, name: str, rng: Random) -> Json:
    """A value as the real ones are; a text of its form where none is shared."""
    if rng.random() < seen.null:
        return None
    if seen.values:
        return rng.choice(seen.values)
    if seen.low is not None and seen.high is not None:
        whole = kind_of(flat(schema)) == "integer" or (seen.low.is_integer() and seen.high.is_integer())
        return rng.randint(int(seen.low), int(seen.high)) if whole else round(rng.uniform(seen.low, seen.high), 2)
    if seen.form:
        return texts.text_of_format(seen.form, rng)
    return texts.alike(seen.code, rng) if seen.code else texts.text_of_name(name, rng)


def is_private(name: str) -> bool:
    """Whether a field of this name may hold what is of somebody, or a secret."""
    return is_telling(name) or _PERSONAL.search("_".join(split_words(name))) is not None


def seen_of(name: str, values: Sequence[Json], rows: int, is_secret: IsSecret) -> Seen:
    """What the values of a field, in so many records, show."""
    known = [each for each in values if each is not None]
    share, null = len(values) / rows, 1 - len(known) / len(values)
    numbers = [float(each) for each in known if isinstance(each, int | float) and not isinstance(each, bool)]
    if is_private(name):
        return Seen(share=share, null=null, form=_form(known))
    if numbers and len(numbers) == len(known):
        return Seen(share=share, null=null, low=min(numbers), high=max(numbers))
    said = [each for each in known if isinstance(each, str) and not is_secret(each)]
    counted = Counter(said)
    shared = [each for each, times in counted.items() if times >= _SHARED and _is_word(each)]
    flags = [each for each in dict.fromkeys(known) if isinstance(each, bool)] if _plain(known) else []
    code = next((each for each in said if _is_code(each)), "")
    return Seen(
        share=share,
        null=null,
        form=_form(known),
        values=tuple([*flags, *shared][:_VALUES]) if flags or len(counted) * _SHARED <= len(said) else (),
        code=texts.alike(code, Random(len(code)), words=True) if code else "",
    )


def _fields(rows: Sequence[Mapping[str, Json]], is_secret: IsSecret) -> dict[str, Seen]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: seen_of(name, [row[name] for row in rows if name in row], len(rows), is_secret) for name in names
    }


def _form(values: Sequence[Json]) -> str:
    said = [each for each in values if isinstance(each, str)]
    if not said:
        return ""
    return next((form for form, pattern in _FORMS if all(map(pattern.fullmatch, said))), "")


def _is_word(text: str) -> bool:
    """Whether it may be a state or a label: short, and no address or number of somebody."""
    short = 0 < len(text) <= _CHARS and len(text.split()) <= _WORDS
    return short and not any(pattern.fullmatch(text) for _, pattern in _FORMS) and "@" not in text


def _is_code(text: str) -> bool:
    return (
        len(text) <= _CHARS
        and " " not in text
        and any(map(str.isdigit, text))
        and "://" not in text
        and "@" not in text
    )


def _plain(values: Sequence[Json]) -> bool:
    return all(isinstance(each, str | bool) for each in values)
