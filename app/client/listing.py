"""What a table shows of the rows of a listing."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.security.visible_text import visible

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


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """As in a call.

    >>> arguments_text({"to": "iris", "page": 2})
    "to='iris', page=2"
    """
    return ", ".join(f"{name}={_cut(visible(repr(value)))}" for name, value in arguments.items())


def value_text(value: object) -> str:
    """The beginning of a value of a task, such as its answer: text as it is, others as JSON.

    >>> value_text("three mails"), value_text({"mails": 3})
    ('three mails', '{"mails": 3}')
    """
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


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
