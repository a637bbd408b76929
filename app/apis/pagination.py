"""The next page of a list: links to it in an answer, or its arguments, from an operation's parameters. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
import msgspec

from app.apis.catalog import Operation, Parameter
from app.apis.naming import plain
from app.apis.servers import origin
from app.base.values import Json

_LINK: Final = re.compile(r"<([^<>]{1,4000})>([^<>]*?)(?=,\s*<|$)")
_REL_NEXT: Final = re.compile(r";\s*rel\s*=\s*(\"[^\"]*\bnext\b[^\"]*\"|next\b)", re.IGNORECASE)
_REL_OTHER: Final = re.compile(r";\s*rel\s*=\s*\"?[^\";]*\b(first|prev|previous|last)\b", re.IGNORECASE)  # page
_URL: Final = re.compile(r"(https?://|/|\?)\S{0,4000}")
_AROUND: Final = ("links", "_links", "meta", "pagination", "paging")

NextPage: TypeAlias = dict[str, Json] | str | None
"""The arguments that differ, why the next page cannot be asked for, or None after the last page."""

_CURSORS: Final = (
    "cursor", "nexttoken", "pagetoken", "nextpagetoken", "nextcursor", "pagecursor", "startcursor",
    "startingtoken", "continuationtoken", "continue", "marker", "after", "startingafter", "nextpage",
    "bookmark", "scrollid",
)  # fmt: skip
_NEXT_FIELDS: Final = (
    "nextcursor", "nexttoken", "nextpagetoken", "nextpage", "nextmarker", "continuationtoken", "continue",
    "endcursor", "cursor", "bookmark", "scrollid", "after", "next",
)  # fmt: skip
_INSIDE: Final = (
    "meta", "metadata", "responsemetadata", "pagination", "paging", "pageinfo", "page", "links", "cursors", "next",
)  # fmt: skip
_OFFSETS: Final = ("offset", "skip", "startat", "startindex", "start", "from")
_PAGES: Final = ("page", "pagenumber", "pagenum", "pageno", "pageindex", "p")
_SIZES: Final = ("limit", "perpage", "pagesize", "maxresults", "count", "top", "take", "size", "rows", "first")
_MORE: Final = ("hasmore", "hasnext", "hasnextpage", "more")
_ITEMS: Final = (
    "items", "results", "data", "records", "entries", "features", "rows", "objects", "value", "values",
)  # fmt: skip
_NO_ITEMS: Final = {"links", "included", "errors", "warnings", "facets"}
_TOTALS: Final = ("total", "totalcount", "totalresults", "totalitems", "numbermatched")
_PAGE_TOTALS: Final = ("totalpages", "pagecount", "pages")
_LAST_PAGES: Final = ("lastpage",)
_SIZE: Final = 50  # that is asked for where a call has to say one
_ROUND: Final = 10  # a list of so many items, or a multiple, may be the first page

PageField: TypeAlias = Literal["more", "total", "pages", "next"]


class Link(Enum):
    """What an answer says without an address."""

    LAST = "there is no next page"


def link_in_headers(headers: Mapping[str, str]) -> str | Link | None:
    """The target of `Link` with rel=next (RFC 8288), or of `Next-Page`; None if neither says anything."""
    links = [(match[1], match[2]) for match in _LINK.finditer(headers.get("link", ""))]
    target = next((address for address, about in links if _REL_NEXT.search(about)), None)
    if target is not None:
        return target
    following = headers.get("next-page", "")
    if _URL.fullmatch(following):
        return following
    return Link.LAST if any(_REL_OTHER.search(about) for _, about in links) else None


def link_in_body(value: Json, url: str) -> str | Link | None:
    """The address in a field `next`, or in one of the `links` with rel=next; None if there is no such field.

    One at another server than `url` says nothing: many servers do not know under which name they are called.
    """
    for following in _following(value):
        if following is None:
            return Link.LAST
        target = following.get("href") if isinstance(following, Mapping) else following
        if isinstance(target, str) and _URL.fullmatch(target) and _is_at(url, target):
            return target
    return None


def arguments_of(
    target: str, operation: Operation, arguments: Mapping[str, Json], url: str
) -> dict[str, Json] | str | None:
    """The query of the target, as arguments. Its path may be another one: many servers have two.

    A text says why they cannot be had; None if nothing would change.
    """
    try:
        following = urljoin(url, target)
        if origin(following) != origin(url):
            return f"the next page is at another server, {httpx.URL(following).host}, which is not followed"
        query = query_of(following)
    except ValueError:
        return "the address of the next page is none"
    known = {each.wire_name: each for each in operation.parameters if each.place == "query" and _is_scalar(each)}
    typed = {known[name].name: _typed(known[name], text) for name, text in query.items() if name in known}
    changed = {name: value for name, value in typed.items() if arguments.get(name) != value}
    if changed or not query:
        return changed or None
    return f"the next page needs {', '.join(sorted(query))[:200]}, which {operation.api} does not take"


def query_of(url: str) -> dict[str, str]:
    """The query of an address; empty for what is none.

    >>> query_of("/rows?page=2"), query_of("http://[broken?page=2")
    ({'page': '2'}, {})
    """
    try:
        return dict(parse_qsl(urlsplit(url).query))
    except ValueError:
        return {}


def is_number(parameter: Parameter) -> bool:
    """Whether it takes numbers, perhaps among other values."""
    return _takes(parameter, "integer", "number")


def _takes(parameter: Parameter, *kinds: str) -> bool:
    schemas = [parameter.schema, *parameter.schema.get("anyOf", ())]
    return any(kind in str(each.get("type")) for each in schemas for kind in kinds)


def _following(value: Json) -> Iterator[Json]:
    """What an answer, or a part of it that is about pages, calls the next one."""
    whole = value if isinstance(value, Mapping) else {}
    for node in (whole, *(whole.get(name) for name in _AROUND)):
        if isinstance(node, Mapping) and "next" in node:
            yield node["next"]
        elif isinstance(node, list):
            yield from (each for each in node if isinstance(each, Mapping) and each.get("rel") == "next")


def _is_at(url: str, target: str) -> bool:
    try:
        return origin(urljoin(url, target)) == origin(url)
    except ValueError:
        return False


def _is_scalar(parameter: Parameter) -> bool:
    return not any(kind in str(parameter.schema.get("type")) for kind in ("array", "object"))


def _typed(parameter: Parameter, text: str) -> Json:
    """A number or a flag where the parameter takes one."""
    if is_number(parameter) and re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
        return float(text) if "." in text else int(text)
    return {"true": True, "false": False}.get(text.lower(), text) if _takes(parameter, "boolean") else text


def next_page(
    operation: Operation, arguments: Mapping[str, Json], value: Json, headers: Mapping[str, str], url: str
) -> NextPage:
    """What to change for the page after the one that a call with `arguments` to `url` answered with `value`."""
    link = link_in_headers(headers) or link_in_body(value, url)
    if link is not None:
        return None if isinstance(link, Link) else arguments_of(link, operation, arguments, url)
    paging = paging_of(operation)
    if paging is None:
        return None
    after = {"cursor": _after_cursor, "offset": _after_offset, "page": _after_page}
    return after[paging.by](paging, value, arguments)


def first_page(operation: Operation) -> dict[str, Json] | None:
    """The required arguments of a call for the first page; None if it needs others, too."""
    found: dict[str, Json] = {}
    for each in operation.parameters:
        name = plain(each.wire_name)
        if not each.required:
            continue
        if name in _SIZES and is_number(each):
            most = each.schema.get("maximum")
            found[each.name] = min(_SIZE, most) if isinstance(most, int) else _SIZE
        elif name in _PAGES and is_number(each):
            found[each.name] = _first_page(each)
        elif name in _OFFSETS and is_number(each):
            found[each.name] = _base(each)
        else:
            return None
    return found


class Paging(msgspec.Struct, frozen=True):
    """How an operation is asked for a page: `first` is what the parameter is for the first one, if a number."""

    by: Literal["cursor", "offset", "page"]
    parameter: Parameter
    first: int = 0
    size: Parameter | None = None


def paging_of(operation: Operation) -> Paging | None:
    """None for an operation that takes no page."""
    known = {plain(each.wire_name): each for each in operation.parameters}
    size = _first(known, _SIZES)
    if (cursor := _first(known, _CURSORS)) is not None:
        return Paging("cursor", cursor, 0, size)
    if (offset := _first(known, _OFFSETS)) is not None and is_number(offset):
        return Paging("offset", offset, _base(offset), size)
    page = _first(known, _PAGES)
    return None if page is None or not is_number(page) else Paging("page", page, _first_page(page), size)


def size_of(operation: Operation) -> Parameter | None:
    """The parameter that says how many items are answered at most."""
    return _first({plain(each.wire_name): each for each in operation.parameters}, _SIZES)


def page_field(name: str) -> PageField | None:
    """What a field of an answer, or a header of it, says about the pages; None for another.

    >>> [page_field(each) for each in ("X-Total-Count", "has_more", "nextPageToken", "pages", "state")]
    ['total', 'more', 'next', 'pages', None]
    """
    own = plain(name).removeprefix("x")
    told: dict[PageField, Sequence[str]] = {
        "more": _MORE, "total": (*_TOTALS, "count"), "pages": (*_PAGE_TOTALS, *_LAST_PAGES), "next": _NEXT_FIELDS,
    }  # fmt: skip
    return next((each for each, names in told.items() if own in names), None)


def items_of(value: Json) -> Sequence[Json]:
    """The items of a page: the answer, its list under a usual name, or else its longest one."""
    if isinstance(value, list):
        return value
    listed = {plain(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}
    lists = {name: each for name, each in listed.items() if isinstance(each, list) and name not in _NO_ITEMS}
    usual = next((lists[name] for name in _ITEMS if name in lists), None)
    return max(lists.values(), key=len, default=()) if usual is None else usual


def total_of(operation: Operation, value: Json, following: NextPage) -> int | None:
    """How many items an answer says there are on all pages; None of what has no pages, whose totals are others."""
    known = {plain(each.wire_name) for each in operation.parameters}
    if following is None and not known & {*_CURSORS, *_OFFSETS, *_PAGES, *_SIZES}:
        return None
    return _number(value, (*_TOTALS, "count"))


def is_whole(operation: Operation, arguments: Mapping[str, Json], value: Json, following: NextPage) -> bool:
    """Whether an answer has all the items, as far as it tells. False for what looks as if it had been cut."""
    count, total = len(items_of(value)), _number(value, _TOTALS)
    if following is not None or _flag(value, _MORE):
        return False
    if total is not None and count:
        return total == count
    size = _given(size_of(operation), arguments)
    return count < size if isinstance(size, int) else count < _ROUND or count % _ROUND != 0


def _after_cursor(paging: Paging, value: Json, arguments: Mapping[str, Json]) -> NextPage:
    if _flag(value, _MORE) is False:
        return None
    cursor = paging.parameter
    found = _next_field(value, cursor)
    if found is None and plain(cursor.wire_name) == "startingafter" and _flag(value, _MORE):
        rows = items_of(value)
        found = rows[-1].get("id") if rows and isinstance(rows[-1], Mapping) else None
    if isinstance(found, bool) or not isinstance(found, str | int) or found in ("", arguments.get(cursor.name)):
        return None
    return {cursor.name: found}


def _next_field(value: Json, cursor: Parameter) -> Json:
    """The value of a field that names the next page; of a URL, the cursor in its query."""
    own = plain(cursor.wire_name)
    for fields in _levels(value):
        for name in (*_NEXT_FIELDS, own):
            found = fields.get(name)
            if isinstance(found, str) and ("://" in found or found.startswith(("/", "?"))):
                found = query_of(found).get(cursor.wire_name, found)
            if isinstance(found, str | int) and found not in ("", False):
                return found
    return None


def _after_offset(paging: Paging, value: Json, arguments: Mapping[str, Json]) -> NextPage:
    offset, base = paging.parameter, paging.first
    given, count = _given(offset, arguments), len(items_of(value))
    is_text = isinstance(given, str) and re.fullmatch(r"\d{1,18}", given)  # so some documents write the default
    here = int(given) if is_text else given or base
    if not isinstance(here, int | float):
        return None
    total = _number(value, _TOTALS)
    if not count or _flag(value, _MORE) is False or (total is not None and here - base + count >= total):
        return None
    return None if total is None and _is_short(count, paging, value, arguments) else {offset.name: here + count}


def _base(offset: Parameter) -> int:
    """The offset of the first item: 1 as in SCIM (RFC 7644, section 3.4.2.4), if not 0."""
    declared = (offset.schema.get("default"), offset.schema.get("minimum"))
    return 1 if 1 in declared or (plain(offset.wire_name) == "startindex" and 0 not in declared) else 0


def _after_page(paging: Paging, value: Json, arguments: Mapping[str, Json]) -> NextPage:
    page, first = paging.parameter, paging.first
    given, count = _given(page, arguments), len(items_of(value))
    here = given if isinstance(given, int) else first
    pages, last = _number(value, _PAGE_TOTALS), _number(value, _LAST_PAGES)
    if pages is not None:
        last = first + pages - 1
    if not count or _flag(value, _MORE) is False or (last is not None and here >= last):
        return None
    return None if last is None and _is_short(count, paging, value, arguments) else {page.name: here + 1}


def _first_page(page: Parameter) -> int:
    """Its number: 0 where the document says so, as those of Spring do."""
    declared = (page.schema.get("default"), page.schema.get("minimum"))
    return next((each for each in declared if type(each) is int and each in (0, 1)), 1)


def _is_short(count: int, paging: Paging, value: Json, arguments: Mapping[str, Json]) -> bool:
    """Whether a page is shorter than was asked for, where the answer itself does not tell."""
    size = _given(paging.size, arguments)
    return _flag(value, _MORE) is None and isinstance(size, int) and count < size


def _levels(value: Json) -> Iterator[dict[str, Json]]:
    """The fields of an answer by plain name, then those of the objects in it that are about pages."""
    if not isinstance(value, Mapping):
        return
    fields = {plain(name): each for name, each in value.items()}
    yield fields
    for name in _INSIDE:
        if isinstance(fields.get(name), Mapping):
            yield from _levels(fields[name])


def _flag(value: Json, names: Sequence[str]) -> bool | None:
    return next(
        (fields[name] for fields in _levels(value) for name in names if isinstance(fields.get(name), bool)), None
    )


def _number(value: Json, names: Sequence[str]) -> int | None:
    found = (fields[name] for fields in _levels(value) for name in names if type(fields.get(name)) is int)
    return next(found, None)


def _first(known: Mapping[str, Parameter], names: Sequence[str]) -> Parameter | None:
    return next((known[name] for name in names if name in known), None)


def _given(parameter: Parameter | None, arguments: Mapping[str, Json]) -> Json:
    if parameter is None:
        return None
    return arguments.get(parameter.name, parameter.schema.get("default"))
