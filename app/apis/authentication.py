"""What identifies a caller to an API, as parts of a request."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import httpx
import msgspec

CERTIFICATE: Final = "certificate"
"""The extension of a request that names the file of its certificate."""
UNFIT_FOR_HEADERS: Final = "have a blank at an end, or a character that no header can carry: store them again"
_IN_HEADER: Final = re.compile(r"([!-~]([ -~]*[!-~])?)?")  # of a value, what every server takes


class Authentication(msgspec.Struct, frozen=True, kw_only=True):
    """Added to a request by the gateway. `hidden` are texts that must not be seen, besides the values added."""

    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: dict[str, str] = {}
    certificate: str | None = None  # name of a file of the operator's, for mutual TLS
    hidden: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.headers or self.query or self.cookies or self.certificate)

    @property
    def fits_headers(self) -> bool:
        """Whether its headers and cookies can be sent.

        >>> [Authentication(headers={"X-Key": text}).fits_headers for text in ("a b", "a ", "ä")]
        [True, False, False]
        """
        return all(map(_IN_HEADER.fullmatch, [*self.headers.values(), *self.cookies.values()]))

    def url(self, url: str) -> str:
        """The URL with the query parameters. Those of the same names are replaced.

        >>> Authentication(query={"key": "a b"}).url("http://a.test/x?page=1&key=2")
        'http://a.test/x?page=1&key=a+b'
        """
        return str(httpx.URL(url).copy_merge_params(self.query)) if self.query else url

    def merged(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request with these. Those of the same names are replaced, cookies are added.

        >>> Authentication(headers={"X-Key": "a"}, cookies={"sid": "b"}).merged({"x-key": "c", "Cookie": "t=d"})
        {'X-Key': 'a', 'Cookie': 't=d; sid=b'}
        """
        added = {name.lower() for name in self.headers}
        kept = {name: text for name, text in headers.items() if name.lower() not in added}
        if self.cookies:
            others = [text for name, text in kept.items() if name.lower() == "cookie"]
            kept = {name: text for name, text in kept.items() if name.lower() != "cookie"}
            own = [f"{name}={text}" for name, text in self.cookies.items()]
            return kept | self.headers | {"Cookie": "; ".join([*others, *own])}
        return kept | self.headers

    def secret_parts(self) -> list[str]:
        """The texts to remove from answers: each value, and the part after its scheme; longest first.

        >>> Authentication(headers={"Authorization": "Bearer abc"}).secret_parts()
        ['Bearer abc', 'abc']
        """
        values = [*self.headers.values(), *self.query.values(), *self.cookies.values(), *self.hidden]
        parts = {part for value in values for part in (value, value.rpartition(" ")[2]) if part}
        return sorted(parts, key=len, reverse=True)


def combined(parts: Sequence[Authentication]) -> Authentication:
    """All of them in one request. Of the same header, the first one counts."""
    whole = Authentication()
    for each in reversed(parts):
        whole = Authentication(
            headers=whole.headers | each.headers,
            query=whole.query | each.query,
            cookies=whole.cookies | each.cookies,
            certificate=each.certificate or whole.certificate,
            hidden=(*whole.hidden, *each.hidden),
        )
    return whole
