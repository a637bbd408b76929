"""What the values of one field of real answers show: its form, and texts like theirs. Pure.

Nothing personal is kept, and no secret: of a field with such a name only the form stays, and a text of its own
is kept only if several records share it, as they share a state or a label.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from app.apis.double import texts
from app.apis.words import split_words
from app.base.secrets import is_telling
from app.base.values import Json

_SHARED: Final = 2  # records that have the same text, for it to be kept
_CHARS: Final = 40  # of a text that is kept
_WORDS: Final = 3  # of such a text
_VALUES: Final = 20  # of one field that are kept
_ROLES: Final = (
    "owner", "author", "creator", "assignee", "reviewer", "reporter", "manager", "member", "requester", "approver",
)  # fmt: skip
_PERSON: Final = re.compile(rf"{'|'.join(_ROLES)}|[a-z]+edby|assignedto")
_PERSONAL: Final = re.compile(
    r"e_?mail|phone|mobile|fax|address|street|postal|zip|birth|(^|_)dob(_|$)|ssn|passport|iban|(^|_)tax|salary|gender"
    r"|(^|_)ip(_|$)|(credit|debit|bank|payment|gift|id)_?card|card_?(number|holder|no)"
    r"|(first|last|full|user|display|given|family|sur|middle|maiden|legal|real|nick|screen)_?name|^name$|(^|_)nick"
    r"|login|person|contact|latitude|longitude|customer|client|patient|recipient|sender|employee|guest|user"
    rf"|account|company|organi[sz]ation|_by$|edby$|_to$|assignedto|{'|'.join(_ROLES)}"
)
_FORMS: Final = (
    ("uuid", re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("date-time", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d.*")),
    ("date", re.compile(r"\d{4}-\d\d-\d\d")),
    ("email", re.compile(r"[^@\s]+@[^@\s]+\.\w+")),
    ("uri", re.compile(r"https?://\S+")),
)

IsSecret = Callable[[str], bool]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one field: `values` are those that records share, `code` a text of its form, made up."""

    share: float  # of the records that have it
    null: float = 0.0  # of those, the share without a value
    form: str = ""  # a format such as `uuid`
    values: tuple[Json, ...] = ()
    code: str = ""
    low: float | None = None  # of numbers
    high: float | None = None


def names_person(noun: str) -> bool:
    """Whether a field that is called so, its words in one, is about somebody in a role.

    >>> [names_person(each) for each in ("assignee", "createdby", "assignedto", "project", "relatedto")]
    [True, True, True, False, False]
    """
    return _PERSON.fullmatch(noun) is not None


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
