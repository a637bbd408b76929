"""Makes one HTTP call, within limits of time and size."""

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import httpx
import msgspec

from app.errors import HostError
from app.gateway.certificate_transport import CERTIFICATE
from app.records import Json
from app.sandbox.frames import MAX_DEPTH, MAX_NODES
from app.untrusted.http_body import BodyError, BodySizeError, read_body
from app.untrusted.json_text import JsonError, decode_json

MAX_ANSWER_BYTES = 3 << 20  # fits into a frame of the sandbox
_ERROR_CHARS = 500
_REDIRECTS = 5
_HEADERS = {
    "Accept": "application/json, text/*;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "sage-server",
}
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([A-Za-z0-9._:+-]{1,40})", re.IGNORECASE)
_CHARACTER_SETS: Final = re.compile(  # of the codecs of Python, those of the Web; the others are slow, or no text
    r"utf-8(-sig)?|utf-(16|32)(-[bl]e)?|ascii|iso8859-\d+|cp\d+|koi8-\w+|mac-\w+|tis-620|kz1048|ptcp154"
    r"|gb2312|gbk|gb18030|hz|big5(hkscs)?|euc_\w+|shift_jis\w*|iso2022_\w+|johab"
)


Sending: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited when the connection is open, right before a request is written. If it raises, nothing is sent."""


class RefusalError(HostError):
    """The API answered with the status of an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("ApiError", message)
        self.status = status


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    location: str | None  # target of a redirect
    media_type: str
    content_type: str
    body: bytes


class HttpCaller:
    """Sends requests through a shared client. Nothing of a response, such as a cookie, reaches other requests."""

    def __init__(self, client: httpx.AsyncClient, *, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._extensions: dict[str, object] = {"timeout": httpx.Timeout(timeout).as_dict()}

    async def send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        content: bytes | None,
        clean: Callable[[str], str] = str,
        sending: Sending | None = None,
        certificate: str | None = None,
    ) -> Json:
        """The parsed response: JSON, text, or None if it is empty. Redirects to other servers are refused.

        Raises HostError, an ApiError, for every failure: a RefusalError for an answer with a status of its own.
        `clean` removes secrets from a text that is truncated, `certificate` names a file for mutual TLS.
        """
        extensions = self._extensions if sending is None else self._extensions | {"trace": _before(sending)}
        if certificate is not None:
            extensions = extensions | {CERTIFICATE: certificate}
        try:
            async with asyncio.timeout(self._timeout):
                return _result(await self._follow(httpx.URL(url), method, headers, content, extensions), clean)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise HostError("ApiError", f"no answer within {self._timeout:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict) as error:
            reason = str(error) or type(error).__name__
            raise HostError("ApiError", f"the server cannot be reached: {reason}") from error

    async def _follow(
        self,
        url: httpx.URL,
        method: str,
        headers: dict[str, str],
        content: bytes | None,
        extensions: dict[str, object],
    ) -> _Response:
        for _ in range(_REDIRECTS):
            request = httpx.Request(
                method, url, headers={**_HEADERS, **headers}, content=content, extensions=extensions
            )
            answer = await self._once(request)
            if answer.location is None:
                return answer
            target = url.join(answer.location)
            if not _same_server(url, target):
                raise _refusal(
                    answer.status, f"it redirects to another server, {target.host}, which is not followed"
                )
            url = target
            if answer.status == 303 or (answer.status < 303 and method == "POST"):
                method, content = "GET", None
                headers = {name: value for name, value in headers.items() if name != "Content-Type"}
        raise HostError("ApiError", f"the server redirects more than {_REDIRECTS} times")

    async def _once(self, request: httpx.Request) -> _Response:
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            content_type = response.headers.get("content-type", "")
            return _Response(
                status=response.status_code,
                location=response.headers["location"] if response.has_redirect_location else None,
                media_type=content_type.partition(";")[0].strip().lower(),
                content_type=content_type,
                body=await _body(response),
            )
        finally:
            await response.aclose()


def _before(sending: Sending) -> Callable[[str, object], Awaitable[None]]:
    """A tracer of httpcore's."""

    async def trace(event: str, _: object) -> None:
        if event.endswith(".send_request_headers.started"):
            await sending()

    return trace


async def _body(response: httpx.Response) -> bytes:
    try:
        return await read_body(response, MAX_ANSWER_BYTES)
    except BodySizeError as error:
        raise HostError("ApiError", f"the answer {error}; ask for less at once") from error
    except BodyError as error:
        raise HostError("ApiError", f"the answer {error}") from error


def _result(answer: _Response, clean: Callable[[str], str]) -> Json:
    if not 200 <= answer.status < 300:
        raise _refusal(answer.status, _short(answer, clean))
    if not answer.body:
        return None
    if answer.media_type == "application/json" or answer.media_type.endswith("+json"):
        try:
            return decode_json(answer.body, max_values=MAX_NODES, max_depth=MAX_DEPTH)
        except JsonError as error:
            raise HostError("ApiError", f"the answer is not the JSON it claims to be: {error}") from error
    try:
        return answer.body.decode(_charset(answer))
    except UnicodeDecodeError as error:
        size, kind = len(answer.body), answer.media_type or "unknown type"
        raise HostError("ApiError", f"the answer is {size} bytes of {kind}, which is not text") from error


def _refusal(status: int, reason: str) -> RefusalError:
    return RefusalError(status, f"Response status code is {status}: {reason}")


def _short(answer: _Response, clean: Callable[[str], str]) -> str:
    """The body on one line, truncated after `clean`, or the beginning of a secret could stay."""
    whole = answer.body.decode(_charset(answer), "replace")
    cleaned = clean(whole)
    head = answer.body[: 4 * _ERROR_CHARS].decode(_charset(answer), "replace")
    text = " ".join((head if cleaned == whole else cleaned[: 4 * _ERROR_CHARS]).split())
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


def _charset(answer: _Response) -> str:
    """The declared character set if it is one, otherwise UTF-8."""
    declared = _CHARSET.search(answer.content_type[:500])
    try:
        name = codecs.lookup(declared[1]).name if declared else "utf-8"
    except LookupError:
        return "utf-8"
    return name if _CHARACTER_SETS.fullmatch(name) else "utf-8"


def _same_server(url: httpx.URL, target: httpx.URL) -> bool:
    """The same origin, or the same host moved from http to https."""
    if url.host != target.host:
        return False
    secured = (url.scheme, target.scheme, url.port, target.port) == ("http", "https", None, None)
    return secured or (url.scheme, url.port) == (target.scheme, target.port)
