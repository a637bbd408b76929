"""The lists of an app: pages, filters, and rows in the shape of its API."""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from app.records import Json
from trainer.worlds.generated.gym_apis import PAGE_SIZE, GymApi, ItemField
from trainer.worlds.generated.gym_items import GymItem
from trainer.worlds.generated.spelling import spell


class ListPage(msgspec.Struct, frozen=True):
    content: Json
    link: str | None = None  # to the next page, where the API has such links


def list_page(api: GymApi, items: list[GymItem], query: Mapping[str, str], path: str) -> ListPage | str:
    """The page that the query asks for, or the reason why there is none."""
    listed = _filtered(api, items, query)
    at = _start(api, query)
    if isinstance(at, str):
        return at
    size = len(listed) if api.shape.paging == "whole" else _size(api, query)
    rows = [row_of(api, item, whole=False) for item in listed[at : at + size]]
    after = f"c{at + size}" if at + size < len(listed) else None
    if api.shape.envelope == "bare":
        return ListPage(rows)
    key = api.resource if api.shape.envelope == "named" else api.wire("data")
    content: dict[str, Json] = {key: rows}
    if api.shape.envelope == "wrapped":
        content = {api.wire("outer"): content}
    if api.shape.paging == "cursor":
        content[api.wire("next")] = after
    if api.shape.paging != "link":
        return ListPage(content)
    link = f"/{path}?{api.wire('cursor')}={quote(after)}" if after else None
    content[api.wire("links")] = {"next": link}
    return ListPage(content, link)


def row_of(api: GymApi, item: GymItem, *, whole: bool) -> dict[str, Json]:
    """An item as the API shows it."""
    shape, fields = api.shape, api.fields
    values: dict[ItemField, Json] = {
        "person": {api.wire("inner"): item.person} if shape.nesting == "object" else item.person,
        "label": item.label,
        "number": item.number,
        "date": item.date,
        "progress": item.state,
    }
    if not whole and shape.rows == "partial":
        del values[api.hidden]
    rest = {fields[field]: value for field, value in values.items()}
    for words in api.domain.distractors:
        rest[spell(words, shape.style)] = f"{words[:2]}-{item.number % 7}"
    first: dict[str, Json] = {fields["id"]: item.id}
    return {**first, api.wire("group"): rest} if shape.nesting == "grouped" else {**first, **rest}


def _filtered(api: GymApi, items: list[GymItem], query: Mapping[str, str]) -> list[GymItem]:
    if api.shape.filters == "none":
        return items
    person, label = query.get(api.fields["person"]), query.get(api.fields["label"])
    return [item for item in items if person in (None, item.person) and label in (None, item.label)]


def _start(api: GymApi, query: Mapping[str, str]) -> int | str:
    """The position of the first item."""
    if api.shape.paging == "page":
        page = _number(query.get(api.wire("page"), str(api.first_page)))
        if page is None or page < api.first_page:
            return f"{api.wire('page')} must be at least {api.first_page}"
        return (page - api.first_page) * PAGE_SIZE
    if api.shape.paging == "offset":
        offset = _number(query.get(api.wire("offset"), "0"))
        return f"{api.wire('offset')} must be at least 0" if offset is None or offset < 0 else offset
    if api.shape.paging in ("cursor", "link"):
        text = query.get(api.wire("cursor"), "c0")
        cursor = _number(text[1:]) if text.startswith("c") else None
        return f"unknown {api.wire('cursor')}" if cursor is None else cursor
    return 0


def _size(api: GymApi, query: Mapping[str, str]) -> int:
    wanted = _number(query.get(api.wire("limit"), "")) if api.shape.paging == "offset" else None
    return PAGE_SIZE if wanted is None else max(1, min(wanted, PAGE_SIZE))


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None
