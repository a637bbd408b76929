"""Questions for the trial of an API, made from what its own reads answer: each has an answer that can be checked.

An answer is right in any usual form, but never with another number. Before, one call shows whether the API
answers: an operation that only reads, and needs no arguments.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Final, Literal

import msgspec

from app.apis import naming
from app.apis.calls.arguments import bind
from app.apis.catalog import App, Operation
from app.apis.credentials.schemes import sent_schemes
from app.apis.documents.protocols import OutgoingRequest, encode
from app.apis.naming import nearest, singular, split_words, word_set
from app.apis.pagination import NextPage, first_page, is_whole, items_of, total_of
from app.base.errors import HostError, InvalidError
from app.base.secrets import is_telling
from app.base.values import Json

_NEEDS_OTHERS: Final = 2

_MOST_CHARS: Final = 400  # of an answer in words
_NUMBER: Final = re.compile(r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,]\d)")
_WORD: Final = re.compile(r"\w+")

MOST: Final = 5  # questions
_FIRST_READS: Final = 6
_FURTHER_READS: Final = 3
_ROWS: Final = 1_000  # of a list that are looked at
_CHARS: Final = 60  # of a value that is asked for
_OTHERS: Final = 50
_DIGITS: Final = "Answer with the number alone."
_WITH: Final = "Answer with"
_KEYS: Final = ("id", "key", "uuid", "number", "code", "slug", "name", "title", "username", "login", "subject")
_ID: Final = re.compile(r"(^|_)(id|uuid|guid)s?$|hash|etag|checksum|ur[il]$|href|link|cursor|avatar|image")
_PERSONAL: Final = re.compile(
    r"e_?mail|phone|mobile|fax|address|street|postal|zip|birth|\bdob\b|ssn|passport|iban|card|tax|salary|gender"
    r"|\bip\b|latitude|longitude|signature"
)
_DULL: Final = word_set(
    "login logout auth oauth authorize token tokens session sessions password passwords health healthz ping "
    "status version versions docs openapi swagger metrics download export ready live readyz livez"
)
_NOT_NOUNS: Final = word_set("api rest rpc json all index latest me")
_VERSION: Final = re.compile(r"v\d+(\.\d+)*")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_MASKED: Final = re.compile(r"[*•●#]{3}|[<\[](hidden|masked|redacted)[>\]]", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]")

IsSecret = Callable[[str], bool]


class CallPlan(msgspec.Struct, frozen=True):
    """An operation by name, "" to have one chosen, and its arguments.

    One that needs stored credentials is chosen first: those of the schemes `credentials`, or a bearer token.
    """

    operation: str = ""
    arguments: dict[str, Json] = {}
    credentials: frozenset[str] = frozenset()
    has_token: bool = False


class SampleCall(msgspec.Struct, frozen=True):
    """A call that is ready to be sent. The app has its operation alone, and no schemas."""

    app: App
    operation: str
    request: OutgoingRequest


def sample_call(app: App, plan: CallPlan) -> SampleCall:
    """Raises InvalidError that names the field for an operation that writes, or that there is not."""
    operation = _named(app, plan.operation) if plan.operation else _chosen(app, _available(app, plan))
    try:
        arguments = bind(operation, [], dict(plan.arguments))
        request = encode(app, operation, arguments)
    except HostError as error:
        raise InvalidError(f"arguments: {error.message}") from error
    bare = msgspec.structs.replace(operation, parameters=(), returns={})
    return SampleCall(msgspec.structs.replace(app, operations={operation.name: bare}), operation.name, request)


def lacks_credentials(app: App, operation: Operation, credentials: frozenset[str], *, has_token: bool) -> bool:
    """Whether the document says that the operation needs other credentials than those that there are."""
    wanted = app.security if operation.security is None else operation.security
    plan = CallPlan(credentials=credentials, has_token=has_token)
    return wanted is not None and _protection(app, operation, _available(app, plan)) == _NEEDS_OTHERS


def _named(app: App, name: str) -> Operation:
    operation = app.operations.get(name)
    if operation is None:
        raise InvalidError(f"operation: {app.name} has no operation {name!r}, {nearest(name, app.operations)}")
    if not operation.safe:
        raise InvalidError(f"operation: {name} changes things ({operation.method}), and a test only reads")
    if operation.bound:
        raise InvalidError(f"operation: {name} has parameters that are bound to secrets; test another one")
    return operation


def _available(app: App, plan: CallPlan) -> frozenset[str]:
    served = {each.name for each in app.schemes.values() if plan.has_token and each.prefix == "Bearer"}
    return plan.credentials | served


def _chosen(app: App, credentials: frozenset[str]) -> Operation:
    """The one that tells most about the credentials; of several that with the shortest path, often a list."""
    fit = [each for each in app.operations.values() if each.safe and not each.bound and not each.required]
    if not fit:
        raise InvalidError(
            f"operation: {app.name} has none that only reads and needs no arguments; name one, with `arguments`"
        )

    def rank(each: Operation) -> tuple[int, bool, int, int]:
        return _protection(app, each, credentials), each.method != "GET", each.path.count("/"), len(each.path)

    return min(fit, key=rank)


def _protection(app: App, operation: Operation, credentials: frozenset[str]) -> int:
    """0: it needs credentials that there are, 1: it accepts them, 2: it needs others, 3: it needs none."""
    wanted = app.security if operation.security is None else operation.security
    needs = bool(app.schemes) if wanted is None else bool(wanted) and () not in wanted
    if sent_schemes(wanted, app.schemes, credentials):
        return 0 if needs else 1
    return _NEEDS_OTHERS if needs else 3


def is_right(right: Json, given: Json, *, asked: str = "", others: Sequence[str] = ()) -> bool:
    """Whether `given` says what is `right`, a number or a text.

    A text may surround it, unless it names another number, that is not one `asked` about, or one of the `others`,
    which would be as good an answer to somebody who does not know.

    >>> [is_right(42, each) for each in (42, 42.0, "42", "42 tickets", "There are 42.", {"count": 42}, [42])]
    [True, True, True, True, True, True, True]
    >>> [is_right(42, each) for each in (41, True, "41", "420", "4.2", "42 of 50", "41, or 42", None, [41, 42])]
    [False, False, False, False, False, False, False, False, False]
    >>> is_right("high", "Its priority is HIGH.", others=["low"]), is_right("high", "high or low", others=["low"])
    (True, False)
    >>> is_right(42, "Ticket 7 has 42", asked="How many replies has ticket 7?")
    True
    """
    given = _only(given)
    if given is None or isinstance(given, bool | dict | list):
        return False
    if isinstance(right, int | float):
        return _is_number(right, given, asked)
    return _is_text(str(right), str(given), asked, others)


def _only(value: Json) -> Json:
    """The value in a list or an object of one."""
    for _ in range(3):
        if isinstance(value, dict) and len(value) == 1:
            [value] = value.values()
        elif isinstance(value, list) and len(value) == 1:
            [value] = value
    return value


def _is_number(right: float, given: str | float, asked: str) -> bool:
    if isinstance(given, int | float):
        return _same(right, given)
    if len(given) > _MOST_CHARS:
        return False
    named, known = _numbers(given), _numbers(asked)
    right_ones = [each for each in named if _same(right, each)]
    return bool(right_ones) and all(_same(right, each) or each in known for each in named)


def _numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in _NUMBER.findall(text)]


def _same(one: float, other: float) -> bool:
    try:
        return one == other or abs(one - other) <= 1e-9 * max(1.0, abs(one))
    except OverflowError:  # integers may be larger than any other number
        return False


def _is_text(right: str, given: str, asked: str, others: Sequence[str]) -> bool:
    if len(given) > _MOST_CHARS + len(right):
        return False
    wanted, said, instant = _plain(right), _plain(given), _at(right)
    if said == wanted or (instant is not None and instant == _at(given.strip())):
        return True
    if not _WORD.search(wanted) or not _names(said, wanted):
        return False
    if re.search(r"\d", wanted) and set(_numbers(said.replace(wanted, " "))) - set(_numbers(asked)):
        return False
    return not any(_names(said, _plain(other)) for other in others if other != right)


def _names(said: str, wanted: str) -> bool:
    """As whole words."""
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", said) is not None


def _plain(text: str) -> str:
    """
    >>> _plain(' "Ann   Smith".')
    'ann smith'
    """
    return re.sub(r"\s+", " ", text.casefold()).strip(" \t\n\"'`*.!")


def _at(text: str) -> datetime | None:
    """The instant that a text names; None for anything else, a number above all."""
    if "-" not in text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class Read(msgspec.Struct, frozen=True):
    """A call to make: an operation of the API, by name, and what it is given of an item, if anything."""

    operation: str
    arguments: dict[str, Json] = {}
    of: str = ""  # what the arguments stand for, in words: "the ticket with the id 7"


class Seen(msgspec.Struct, frozen=True):
    """What a read answered. It is `complete` if there is no further page, `total` what it says of all pages."""

    read: Read
    value: Json
    complete: bool = True
    total: int | None = None

    @property
    def rows(self) -> list[dict[str, Json]]:
        """The items of a list of objects; empty for another answer."""
        rows = _list_in(self.value)
        whole = rows is not None and all(isinstance(each, dict) for each in rows)
        return list(rows or ())[:_ROWS] if whole else []

    @property
    def object(self) -> dict[str, Json]:
        """The fields of an answer that is no list."""
        value = _unwrapped(self.value)
        return value if isinstance(value, dict) and _list_in(value) is None else {}

    @property
    def count(self) -> int | None:
        """The items of the list, on all its pages; None if that is not known, or there is no list."""
        rows = _list_in(self.value)
        if rows is None:
            return None
        if self.complete:
            return len(rows)
        return self.total if self.total is not None and self.total > len(rows) else None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question in words, and how its answer follows from a read."""

    text: str
    right: Json  # a number or a text
    read: Read
    kind: Literal["count", "field", "most", "matching"]
    key: str = ""  # the field that tells items apart; "" where the answer is one object
    item: Json = None  # which one
    field: str = ""
    value: Json = None  # that the field of those has that are counted
    others: tuple[str, ...] = ()  # answers that are as likely to somebody who does not know


def first_reads(app: App) -> list[Read]:
    """Calls that need no arguments but for pages, about as many different things as there are: those of the
    shortest paths first, which are often lists.
    """
    fit = [each for each in app.operations.values() if _reads(each) and first_page(each) is not None]
    fit.sort(key=lambda each: (each.path.count("/"), len(each.path)))
    of_each = {_noun(each): each for each in reversed(fit)}
    others = [each for each in fit if each not in of_each.values()]
    first = [each for each in fit if each in of_each.values()]
    return [Read(each.name, first_page(each) or {}) for each in (*first, *others)[:_FIRST_READS]]


def seen_of(app: App, read: Read, value: Json, following: NextPage) -> Seen:
    """What a read answered with: `following` is what to change for the next page."""
    operation, inner = app.operations[read.operation], _unwrapped(value)
    complete = is_whole(operation, read.arguments, inner, following)
    return Seen(read, value, complete, total_of(operation, inner, following))


def further_reads(app: App, seen: Sequence[Seen]) -> list[Read]:
    """Calls whose one argument is known from an item of a list."""
    found: list[Read] = []
    for operation in app.operations.values():
        if len(found) == _FURTHER_READS:
            break
        if _reads(operation) and len(operation.required) == 1:
            found += [read for each in seen if (read := _of_item(app, operation, each)) is not None][:1]
    return found


def questions(app: App, seen: Sequence[Seen], is_secret: IsSecret = lambda _: False) -> list[Question]:
    """At most `MOST`, of as many reads and kinds as there are."""
    turns = [_About(app, each, seen, is_secret).questions(number) for number, each in enumerate(seen)]
    chosen: dict[str, Question] = {}
    for together in zip_longest(*turns):
        for question in together:
            if question is not None and len(chosen) < MOST:
                chosen.setdefault(question.text, question)
    return list(chosen.values())


def answer_of(question: Question, seen: Seen) -> Json:
    """The right answer by another answer of the same read; None if there is none any more."""
    if question.kind == "count":
        return seen.count
    if question.kind == "most":
        return _most(seen, question.key, question.field)
    if question.kind == "matching":
        return sum(each.get(question.field) == question.value for each in seen.rows) if seen.complete else None
    rows = seen.rows if question.key else [seen.object]
    of_item = (each for each in rows if not question.key or each.get(question.key) == question.item)
    return next((each.get(question.field) for each in of_item), None)


def answers(question: Question, given: Json, right: Json) -> bool:
    """Whether `given` is the `right` answer to a question. Also the item itself answers which one it is."""
    if question.kind == "most" and isinstance(given, Mapping) and question.key in given:
        given = given[question.key]
    return is_right(right, given, asked=question.text, others=question.others)


def _reads(operation: Operation) -> bool:
    words = {*split_words(operation.name), *split_words(operation.path)}
    return operation.safe and operation.method != "HEAD" and not operation.bound and not words & _DULL


def _of_item(app: App, operation: Operation, seen: Seen) -> Read | None:
    """A call of the operation for an item of the list, if it is one for such items."""
    [parameter] = [each for each in operation.parameters if each.required]
    rows, listed = seen.rows, app.operations[seen.read.operation]
    if not rows or parameter.place not in ("path", "query", "body") or seen.read.of:
        return None
    item = rows[len(rows) // 2]
    key = _key_for(parameter.wire_name, operation, listed, item)
    if key is None or not _is_plain(item[key]):
        return None
    *about, last = split_words(key)
    what, by = (" ".join(about), "id") if last == "id" and about else (_one(listed), _words(key))
    return Read(operation.name, {parameter.name: item[key]}, f"the {what} with the {by} {item[key]}")


def _key_for(name: str, operation: Operation, listed: Operation, item: Mapping[str, Json]) -> str | None:
    """The field of a listed item that the argument of an operation stands for, if it is about such items."""
    if operation.path.startswith(f"{listed.path.rstrip('/')}/{{{name}}}"):
        return next((each for each in (name, "id", *_KEYS) if each in item), None)
    *about, last = split_words(name) or [""]
    if about and last == "id" and name in item:
        return name
    is_same = (" ".join(about) or _one(operation)) == _one(listed)
    return "id" if last == "id" and is_same and "id" in item else None


class _About:
    """Questions about one answer, in words."""

    def __init__(self, app: App, seen: Seen, every: Sequence[Seen], is_secret: IsSecret) -> None:
        operation = app.operations[seen.read.operation]
        alike = [each for each in every if _noun(app.operations[each.read.operation]) == _noun(operation)]
        told = operation.summary.strip().rstrip(".") if len(alike) > 1 and not seen.read.of else ""
        place = f" of {seen.read.of}" if seen.read.of else ""
        self._of, self._in = place, f" in {app.name}" + (f" ({told})" if 0 < len(told) <= 100 else "")
        self._where = f"{self._of}{self._in}"
        self._seen, self._is_secret = seen, is_secret
        self._is_item = bool(place) and operation.path.endswith("}")  # that the arguments stand for
        noun, self._one = _noun(operation), _one(operation)
        self._many = noun if self._one != noun else f"entries of the {noun}"

    def questions(self, number: int) -> Iterator[Question]:
        """One of each kind in turn, from the kind with this number on."""
        kinds = deque([self._count, self._fields, self._mosts, self._matchings])
        kinds.rotate(-number)
        for together in zip_longest(*(kind() for kind in kinds)):
            yield from (each for each in together if each is not None)

    def _count(self) -> Iterator[Question]:
        if count := self._seen.count:
            text = f"How many {self._many}{self._of} are there{self._in}? {_DIGITS}"
            yield Question(text=text, right=count, read=self._seen.read, kind="count")

    def _fields(self) -> Iterator[Question]:
        if not (rows := self._seen.rows):
            yield from self._fields_of_one()
            return
        key = self._key()
        if key is None:
            return
        middle = len(rows) // 2
        for row in dict.fromkeys((middle, len(rows) - 1)):
            item = rows[row]
            for field in self._askable(item, key):
                others = self._others(field, item[field])
                if len(rows) > 1 and not others:  # the same everywhere: a guess may be right
                    continue
                one = f"{self._one} with the {_words(key)} {item[key]}"
                about = {"key": key, "item": item[key], "field": field, "others": others}
                text = f"What is the {_words(field)} of the {one}{self._where}?"
                yield self._asked(text, item[field], kind="field", **about)
                break

    def _fields_of_one(self) -> Iterator[Question]:
        item = self._seen.object
        for field in list(self._askable(item, ""))[:2]:
            text = f"What is the {_words(field)}{'' if self._is_item else f' of the {self._one}'}{self._where}?"
            yield self._asked(text, item[field], kind="field", field=field)

    def _mosts(self) -> Iterator[Question]:
        rows, key = self._seen.rows, self._key()
        if key is None or len(rows) < 3 or not self._seen.complete:
            return
        for field in self._askable(rows[0], key, times=True):
            if (right := _most(self._seen, key, field)) is not None:
                kind = "latest" if isinstance(rows[0][field], str) else "largest"
                text = f"Which {self._one}{self._where} has the {kind} {_words(field)}? {_WITH} its {_words(key)}."
                others = self._others(key, right)
                yield self._asked(text, right, kind="most", key=key, field=field, others=others)

    def _matchings(self) -> Iterator[Question]:
        rows = self._seen.rows
        if len(rows) < 3 or not self._seen.complete:
            return
        for field in self._askable(rows[0], "", flags=True):
            values = Counter(each[field] for each in rows if isinstance(each.get(field), str | bool))
            common, number = values.most_common(1)[0] if values else ("", 0)
            few = 2 <= len(values) <= min(8, len(rows) - 1)
            if few and sum(values.values()) == len(rows) and all(map(self._is_shown, values)) and number > 1:
                shown = str(common).lower() if isinstance(common, bool) else common
                text = f"How many {self._many}{self._where} have the {_words(field)} {shown}? {_DIGITS}"
                yield self._asked(text, number, kind="matching", field=field, value=common)

    def _asked(self, text: str, right: Json, **more: Json) -> Question:
        return Question(text=text, right=right, read=self._seen.read, **more)

    def _key(self) -> str | None:
        """The field that tells the items apart."""
        rows = self._seen.rows
        own = "_".join([*self._one.split(), "id"])
        names = [each for each in ("id", own, *_KEYS) if all(_is_plain(row.get(each)) for row in rows)]
        unique = (each for each in names if len({str(row[each]) for row in rows}) == len(rows))
        return next((each for each in unique if all(self._is_shown(row[each]) for row in rows)), None)

    def _askable(
        self, item: Mapping[str, Json], key: str, *, times: bool = False, flags: bool = False
    ) -> Iterator[str]:
        for name, value in item.items():
            flag = flags and isinstance(value, bool)
            plain = "_".join(split_words(name))
            asked = name != key and not (_ID.search(plain) or _PERSONAL.search(plain) or is_telling(name))
            asked = asked and (times or not (isinstance(value, str) and _TIME.match(value)))
            if asked and (flag or _is_plain(value)) and self._is_shown(value):
                yield name

    def _is_shown(self, value: Json) -> bool:
        return not (isinstance(value, str) and (_is_masked(value) or self._is_secret(value)))

    def _others(self, field: str, right: Json) -> tuple[str, ...]:
        values = (each.get(field) for each in self._seen.rows)
        return tuple(dict.fromkeys(str(each) for each in values if _is_plain(each) and each != right))[:_OTHERS]


def _most(seen: Seen, key: str, field: str) -> Json:
    """The key of the item that has the most, if one alone has it."""
    if not seen.complete or not seen.rows:
        return None
    ranks = [(_rank(each.get(field)), each.get(key)) for each in seen.rows]
    known = [(rank, found) for rank, found in ranks if rank is not None]
    if len(known) != len(ranks) or len({type(rank) for rank, _ in known}) != 1:
        return None
    highest = max(rank for rank, _ in known)
    best = [found for rank, found in known if rank == highest]
    return best[0] if len(best) == 1 else None


def _rank(value: Json) -> float | datetime | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    return _at(value) if isinstance(value, str) and _DATE.fullmatch(value) else None


def _list_in(value: Json) -> Sequence[Json] | None:
    """The list that an answer is, or is about; None for one that is about one thing, perhaps with lists in it."""
    value = _unwrapped(value)
    if isinstance(value, list):
        return value
    if not isinstance(value, Mapping) or any(name in value for name in _KEYS):
        return None
    lists = [each for each in value.values() if isinstance(each, list)]
    return items_of(value) if lists else None


def _unwrapped(value: Json) -> Json:
    while isinstance(value, Mapping) and len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
        [value] = value.values()
    return value


def _is_plain(value: Json) -> bool:
    """A short text, or a number."""
    if isinstance(value, str):
        return 0 < len(value.strip()) <= _CHARS and value.isprintable() and "://" not in value
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _is_masked(text: str) -> bool:
    """Whether it stands for something hidden, or for nothing: one sign over and over, or no letter or digit.

    >>> [_is_masked(each) for each in ("********", "xxxx", "****1234", "[Redacted]", "n/a", "lamp", "777", "a")]
    [True, True, True, True, False, False, False, False]
    """
    plain = text.strip()
    is_one_sign = len(plain) > 2 and len(set(plain.casefold())) == 1 and not plain.isdigit()
    return is_one_sign or _MASKED.search(plain) is not None or not any(map(str.isalnum, plain))


def _noun(operation: Operation) -> str:
    """What an operation is about, in words: its path says so, or its name.

    >>> about = dict(app="desk", method="GET", summary="")
    >>> _noun(Operation(name="x", path="/v2/customer-accounts/{id}", **about))
    'customer accounts'
    >>> _noun(Operation(name="x", path="list_open_tickets", **about))
    'open tickets'
    >>> _noun(Operation(name="about_api_v1_get", path="/api/v1/", **about))
    'about'
    """
    parts = [each for each in operation.path.split("/") if each and "{" not in each]
    for part in (*reversed(parts), operation.name):
        words = [each for each in split_words(part) if each not in naming.CLEAR | _NOT_NOUNS]
        if words := [each for each in words if not _VERSION.fullmatch(each)]:
            return " ".join(words)
    return "entries"


def _one(operation: Operation) -> str:
    """
    >>> _one(Operation(app="desk", name="x", method="GET", path="/customer-accounts", summary=""))
    'customer account'
    """
    *words, last = _noun(operation).split()
    return " ".join([*words, singular(last)])


def _words(field: str) -> str:
    return " ".join(split_words(field)) or field
