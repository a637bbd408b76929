"""The headers of responses that agents may see. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from app.base.secrets import is_telling

_KNOWN: Final = {
    "accept-ranges", "age", "allow", "cache-control", "content-disposition", "content-language",
    "content-location", "content-range", "content-type", "date", "deprecation", "etag", "expires",
    "last-modified", "link", "location", "operation-location", "preference-applied", "retry-after", "sunset",
    "warning",
}  # fmt: skip
_PREFIXES: Final = ("x-", "ratelimit", "next-", "total-")
_SECRET: Final = re.compile(r"auth|session|cookie|csrf|xsrf|jwt|signature")
_MAX_HEADERS: Final = 60
_MAX_CHARS: Final = 4_000  # of one value


def passed_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By lower-case name, without those that could be credentials; those of the same name joined with commas.

    >>> passed_headers([("Link", "<a>"), ("Link", "<b>"), ("Set-Cookie", "s=1"), ("X-Auth-Token", "t")])
    {'link': '<a>, <b>'}
    """
    passed: dict[str, str] = {}
    for given, value in headers:
        name = given.lower()
        if not _is_passed(name) or (name not in passed and len(passed) == _MAX_HEADERS):
            continue
        joined = f"{passed[name]}, {value}" if name in passed else value
        if len(joined) <= _MAX_CHARS and joined.isprintable():
            passed[name] = joined
    return passed


def _is_passed(name: str) -> bool:
    if name in _KNOWN:
        return True
    return name.startswith(_PREFIXES) and not _SECRET.search(name) and not is_telling(name.replace("-", "_"))
