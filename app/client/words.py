"""The words of the command line: what a table shows of the rows of a listing, and errors without names of
classes, routes of REST and regular expressions. All that commands print of errors goes through here.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import msgspec

from app.base.text import shortened, visible

_LONGEST_VALUE = 60  # characters of an argument, or an answer in a table
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


class Listing(msgspec.Struct, frozen=True):
    """The last column may be long. `items` names the rows in a page; None: the answer is the list itself.
    `empty` is said of one without rows. With `by_project`, rows of several projects name theirs, as the second
    column.
    """

    head: Sequence[str]
    row: Callable[[Mapping[str, Any]], Sequence[object]]
    items: str | None = None
    empty: str = ""
    by_project: bool = False

    def table_of(self, answer: Any) -> tuple[Sequence[str], list[Sequence[object]]]:
        """The head and the rows."""
        found = answer if self.items is None else answer[self.items]
        rows: list[Sequence[object]] = [self.row(each) for each in found]
        if not self.by_project or len({each["project"] for each in found}) < 2:
            return self.head, rows
        projects = [each["project"] for each in found]
        named = [(first, project, *more) for (first, *more), project in zip(rows, projects, strict=True)]
        return [self.head[0], "project", *self.head[1:]], list(named)


def listing_of(*fields: str, items: str | None = None) -> Listing:
    """A column for each field. A time is shown as an age.

    >>> listing_of("name", "state").table_of([{"name": "a", "state": None}])
    (['name', 'state'], [('a', '-')])
    """
    head = ["age" if name == "created_at" else name.removesuffix("_at").replace("_", " ") for name in fields]
    return Listing(head, lambda row: tuple(_shown(name, row[name]) for name in fields), items)


def age(moment: str) -> str:
    """Of a time of the server, in its largest unit.

    >>> age("2026-01-01T00:00:00Z").endswith("d")
    True
    """
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= length), _UNITS[-1])
    return f"{seconds // length:.0f}{unit}"


def moment(text: str | None) -> str:
    """A time of the server, to the second."""
    return text[:19].replace("T", " ") if text else "-"


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """As in a call.

    >>> arguments_text({"to": "iris", "page": 2})
    "to='iris', page=2"
    """
    shown = {name: shortened(visible(repr(value)), _LONGEST_VALUE) for name, value in arguments.items()}
    return ", ".join(f"{name}={value}" for name, value in shown.items())


def value_text(value: object) -> str:
    """The beginning of a value of a task, such as its answer: text as it is, others as JSON.

    >>> value_text("three mails"), value_text({"mails": 3})
    ('three mails', '{"mails": 3}')
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, _LONGEST_VALUE)


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name.endswith("_at"):
        return age(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_CLASS = re.compile(r"^(?:[\w.]*[A-Z]\w*(?:Error|Exception|Timeout)(?:: |$))+")
_ROUTE = re.compile(r"(?<![\w`])(`?)(GET|POST|PUT|PATCH|DELETE) (/v1(?:/[\w{}.~*-]+|\?[\w{}=&.%-]+)*)\1")
_CONSOLE = "the console"
_COMMANDS = (
    ("GET projects", "`sage projects`"),
    ("POST projects", "`sage projects create`"),
    ("GET tasks", "`sage tasks`"),
    ("GET tasks/*", "`sage tasks {0}`"),
    ("GET tasks/*/trajectory", _CONSOLE),
    ("POST tasks/*/replay", "replay it in the console"),
    ("POST tasks/*/cancel", "`sage tasks {0} --cancel`"),
    ("GET skills", "`sage skills`"),
    ("GET skills/search", "`sage skills search`"),
    ("POST apis", "`sage apis add`"),
    ("GET apis", "`sage apis`"),
    ("PUT apis/*/credentials/*", "`sage apis connect {0} {1}`"),
    ("GET apis/*/authorize", "`sage apis connect {0}`"),
    ("GET keys", "`sage keys`"),
    ("GET hosted-models", "`sage models hosted`"),
    ("GET training-runs", "`sage runs`"),
    ("POST training-runs", "`sage train`"),
    ("GET approvals", "`sage approvals`"),
    ("GET releases", "`sage releases`"),
    ("POST releases/*/activate", "`sage releases NUMBER --activate`"),
    ("DELETE releases/*/canary", "`sage releases NUMBER --canary 0`"),
    ("POST feedback", "`sage score`"),
    ("POST datasets", "`sage train --set data=FILE`"),
)
"""Routes that errors name, and the commands that do the same; what has none is done in the console."""

_FAULT = re.compile(
    r"(?P<what>(?:Expected `|Object contains unknown|Object missing required|Invalid (?:enum value|UUID|RFC)).*?)"
    r"(?: - at `(?:key in )?\$\.?(?P<place>[^`]*)`|(?=\n|$))"
)
_WORDS = (
    (r"Expected `int(?: \| null)?`, got .*", "must be a whole number"),
    (r"Expected `float(?: \| null)?`, got .*", "must be a number"),
    (r"Expected `bool(?: \| null)?`, got .*", "must be true or false"),
    (r"Expected `str(?: \| null)?`, got .*", "must be text"),
    (r"Expected `datetime(?: \| null)?`, got .*|Invalid RFC.*", "must be a time such as 2026-01-31T12:00:00Z"),
    (r"Expected `uuid(?: \| null)?`, got .*|Invalid UUID", "must be an id"),
    (r"Expected `array(?: \| null)?`, got .*", "must be a list"),
    (r"Expected `object(?: \| null)?`, got .*", "must have named fields"),
    (r"Expected `(?:int|float)` >= (\S+)", r"must be at least \1"),
    (r"Expected `(?:int|float)` <= (\S+)", r"must be at most \1"),
    (r"Expected `(?:int|float)` > (\S+)", r"must be more than \1"),
    (r"Expected `(?:int|float)` < (\S+)", r"must be less than \1"),
    (r"Expected `str` of length >= (\d+)", r"needs at least \1 characters"),
    (r"Expected `str` of length <= (\d+)", r"may have at most \1 characters"),
    (r"Expected `\w+` of length >= (\d+)", r"needs at least \1 entries"),
    (r"Expected `\w+` of length <= (\d+)", r"may have at most \1 entries"),
    (r"Invalid enum value (.+)", r"cannot be \1"),
    (r"Object contains unknown field `(.+)`", r"has no field \1"),
    (r"Object missing required field `(.+)`", r"lacks the field \1"),
)
_MATCHING = re.compile(r"Expected `\w+` matching regex '(.*)'")
_CHARACTERS = {
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?!\n)$": "must be 1 to 64 letters, digits, _, . or -, the first no sign",
    r"^[a-z][a-z0-9_]{0,63}(?!\n)$": "must be 1 to 64 lower-case letters, digits or _, and begin with a letter",
    r"^[A-Za-z][A-Za-z0-9_]{0,99}(?!\n)$": "must be 1 to 100 letters, digits or _, and begin with a letter",
    r"^https?://[^\s?#\x00]+(?!\n)$": "must begin with http:// or https://, without blanks, ? or #",
    r"^[!-~]+(?!\n)$": "must be printable ASCII without blanks",
    r"^[0-9a-f]{32}(?!\n)$": "must be the name of an adapter, of 32 hexadecimal digits",
    r"^https?://": "must begin with http:// or https://",
    r"^https?://[^\s\x00]+(?!\n)$": "must be an address that begins with http:// or https://",
    r"^( *[0-9]{1,9} *(, *[0-9]{1,9} *){0,6})?(?!\n)$": "must be at most seven numbers of releases, such as 3,12",
    r"^(https?://[^\s{}\x00]+|stdio:[A-Za-z0-9_.-]{1,64})(?!\n)$": "must be an address, or stdio:NAME",
}


def readable_error(text: str) -> str:
    r"""The text without names of classes, routes of REST and regular expressions.

    >>> readable_error("NotFoundError: no release has the id 7; GET /v1/releases lists them")
    'no release has the id 7; `sage releases` lists them'
    >>> readable_error("the run's settings do not fit: Expected `int` >= 2 - at `$.group`")
    "the run's settings do not fit: group must be at least 2"
    >>> readable_error("name: Expected `str` matching regex '^[!-~]+(?!\\n)$'")
    'name: must be printable ASCII without blanks'
    """
    return _ROUTE.sub(_command, _FAULT.sub(_fault, _CLASS.sub("", text)))


def _command(found: re.Match[str]) -> str:
    """The command that does what a route does."""
    path = urlsplit(found[3]).path.removeprefix("/v1/")
    for route, command in _COMMANDS:
        method, pattern = route.split(" ")
        if method == found[2] and pattern.count("/") == path.count("/") and fnmatchcase(path, pattern):
            parts = zip(path.split("/"), pattern.split("/"), strict=True)
            return command.format(
                *(part.strip("{}").upper() if "{" in part else part for part, of in parts if of == "*")
            )
    return _CONSOLE


def _fault(found: re.Match[str]) -> str:
    what = found["what"]
    place = f"{found['place']} " if found["place"] else ""
    if pattern := _MATCHING.fullmatch(what):
        plain = pattern[1].replace("\\\\", "\\")
        return place + _CHARACTERS.get(plain, "has characters that are not permitted there")
    for expected, words in _WORDS:
        if matched := re.fullmatch(expected, what):
            return place + matched.expand(words)
    return found[0]
