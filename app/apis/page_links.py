"""Links to the next page, in the headers of an answer or in its body, and the arguments they stand for. Pure."""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

from app.apis.address import origin
from app.apis.catalog import Operation, Parameter
from app.base.values import Json

_LINK: Final = re.compile(r"<([^<>]{1,4000})>([^<>]*?)(?=,\s*<|$)")
_REL_NEXT: Final = re.compile(r";\s*rel\s*=\s*(\"[^\"]*\bnext\b[^\"]*\"|next\b)", re.IGNORECASE)
_REL_OTHER: Final = re.compile(r";\s*rel\s*=\s*\"?[^\";]*\b(first|prev|previous|last)\b", re.IGNORECASE)  # page
_URL: Final = re.compile(r"(https?://|/|\?)\S{0,4000}")
_AROUND: Final = ("links", "_links", "meta", "pagination", "paging")


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
