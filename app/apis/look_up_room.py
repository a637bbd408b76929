"""Look-ups that fit what an agent reads: pages, the likeliest first, each with the call of the next. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from app.apis.catalog import App, Operation
from app.apis.operation_index import index_of
from app.apis.query_words import read_query
from app.base.values import Json

NOTE = 160  # characters, of the remark that there is more
SHORT = 80  # characters of a description, where all do not fit
_LEAST = 40  # characters of what an object has within it
MORE = "..."


class Room(NamedTuple):
    """The characters that one look-up may take, and the instruction of the task that it is made for."""

    chars: int = 8_000
    instruction: str = ""


def likeliest(app: App, instruction: str) -> list[Operation]:
    """All operations of an app, first those that the words of a task speak of."""
    found = sorted(index_of(app).search(read_query(instruction)), key=lambda each: -each[0])
    first = dict.fromkeys(operation for _, operation in found)
    return list(first | dict.fromkeys(app.operations.values()))


def page_of_entries(
    entries: Sequence[dict[str, Json]], room: Room, page: int, call: str, sort: Callable[[], Sequence[Any]]
) -> list[Json]:
    """All entries if they fit, or else one page of them in the order of `sort`, with shorter descriptions.

    The last entry of a page says how many more there are, and the call that shows them.
    """
    if page == 1 and len(repr(entries)) <= room.chars:
        return list(entries)
    left = [{**each, "description": shortened(str(each["description"]), SHORT)} for each in sort()]
    sizes = [len(repr(each)) + 2 for each in left]
    start = end = 0
    for _ in range(min(page, len(left) + 1)):  # one after the last is empty
        start, end = end, end + max(1, how_many_fit(sizes[end:], room.chars - NOTE))
    shown: list[Json] = [*left[start:end]]
    if end < len(left):
        blank = dict.fromkeys(left[0], MORE)
        shown.append({**blank, "description": f"{len(left) - end} more: {next_page(call, page)}"})
    return shown


def next_page(call: str, page: int) -> str:
    """
    >>> next_page("search('mail')", 1)
    "apis.api_docs.search('mail', page=2)"
    """
    return f"apis.api_docs.{call.removesuffix(')')}, page={page + 1})".replace("(, ", "(")


def shortened(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - len(MORE)]}{MORE}"


def fitted(form: Json, chars: int, rank: Callable[[str], Any]) -> Json:
    """As much of the form as fits, at least something. Objects that lack fields say how many.

    >>> fitted({"id": "integer", "rows": [{"a": "string", "b": "string"}]}, 40, len)
    {'id': 'integer', '...': '1 more'}
    """
    if not form or len(repr(form)) <= chars:
        return form
    if isinstance(form, list):
        return [fitted(form[0], chars - 2, rank)]
    if not isinstance(form, dict):
        return shortened(str(form), max(chars, _LEAST))
    names = sorted(form, key=rank)
    sizes = {name: len(repr(form[name])) for name in names}
    names_alone = [len(repr(name)) + 4 for name in names]
    least = [alone + min(sizes[name], _LEAST) for alone, name in zip(names_alone, names, strict=True)]
    count = max(1, how_many_fit(least, chars - len("'...': '9999 more'")))
    left = chars - sum(names_alone[:count])
    chosen: dict[str, Json] = {}
    for number, name in enumerate(sorted(names[:count], key=lambda name: sizes[name])):
        chosen[name] = fitted(form[name], left // (count - number), rank)
        left -= len(repr(chosen[name]))
    shown = {name: chosen[name] for name in form if name in chosen}
    return shown if count == len(form) else {**shown, MORE: f"{len(form) - count} more"}


def rest_of(form: Json, shown: Json) -> Json:
    """What the form has besides what is shown; None if that is all."""
    if isinstance(form, list):
        left = rest_of(form[0], shown[0]) if isinstance(shown, list) else None
        return None if left is None else [left]
    if not isinstance(form, dict) or form == shown:
        return None
    parts = {name: rest_of(each, shown[name]) if name in shown else each for name, each in form.items()}
    return {name: each for name, each in parts.items() if each is not None} or None


def how_many_fit(sizes: Sequence[int], chars: int) -> int:
    """How many of the first take no more than `chars`."""
    for count, size in enumerate(sizes):
        chars -= size
        if chars < 0:
            return count
    return len(sizes)
