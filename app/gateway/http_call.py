"""Makes one HTTP call, within limits of time and size."""

import asyncio
import codecs

import httpx
import msgspec

from app.errors import HostError
from app.gateway.ssrf import resolve_public
from app.records import Json

MAX_ANSWER_BYTES = 3 << 20  # fits into a frame of the sandbox
_ERROR_CHARS = 500
_REDIRECTS = 5
_HEADERS = {
    "Accept": "application/json, text/*;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "sage-server",
}


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    location: str | None  # target of a redirect
    media_type: str
    content_type: str
    body: bytes


class HttpCaller:
    """Sends requests through a shared client. Nothing of a response, such as a cookie, reaches other requests."""

    def __init__(self, client: httpx.AsyncClient, *, timeout: float, allow_private_hosts: bool) -> None:
        self._client = client
        self._timeout = timeout
        self._extensions = {"timeout": httpx.Timeout(timeout).as_dict()}
        self._allow_private_hosts = allow_private_hosts

    async def send(self, method: str, url: str, headers: dict[str, str], content: bytes | None) -> Json:
        """The parsed response: JSON, text, or None if it is empty. Redirects to other servers are refused.

        Raises HostError, an ApiError, for every failure.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow(httpx.URL(url), method, headers, content)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise HostError("ApiError", f"no answer within {self._timeout:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict) as error:
            reason = str(error) or type(error).__name__
            raise HostError("ApiError", f"the server cannot be reached: {reason}") from error

    async def _follow(self, url: httpx.URL, method: str, headers: dict[str, str], content: bytes | None) -> Json:
        for _ in range(_REDIRECTS):
            answer = await self._once(url, method, headers, content)
            if answer.location is None:
                return _result(answer)
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

    async def _once(
        self, url: httpx.URL, method: str, headers: dict[str, str], content: bytes | None
    ) -> _Response:
        request = httpx.Request(
            method, url, headers={**_HEADERS, **headers}, content=content, extensions=self._extensions
        )
        if not self._allow_private_hosts:
            request = await resolve_public(request)
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


async def _body(response: httpx.Response) -> bytes:
    """The decompressed body, up to the limit."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise HostError(
                "ApiError", f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MB; ask for less at once"
            )
    return bytes(body)


def _result(answer: _Response) -> Json:
    if not 200 <= answer.status < 300:
        raise _refusal(answer.status, _short(answer))
    if not answer.body:
        return None
    if answer.media_type == "application/json" or answer.media_type.endswith("+json"):
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HostError("ApiError", f"the answer is not the JSON it claims to be: {error}") from error
    try:
        return answer.body.decode(_charset(answer))
    except UnicodeDecodeError as error:
        size, kind = len(answer.body), answer.media_type or "unknown type"
        raise HostError("ApiError", f"the answer is {size} bytes of {kind}, which is not text") from error


def _refusal(status: int, reason: str) -> HostError:
    return HostError("ApiError", f"Response status code is {status}: {reason}")


def _short(answer: _Response) -> str:
    """The body on one line, truncated."""
    text = " ".join(answer.body[: 4 * _ERROR_CHARS].decode(_charset(answer), "replace").split())
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


def _charset(answer: _Response) -> str:
    declared = httpx.Response(200, headers={"content-type": answer.content_type}).charset_encoding
    try:
        return codecs.lookup(declared or "utf-8").name
    except LookupError:
        return "utf-8"


def _same_server(url: httpx.URL, target: httpx.URL) -> bool:
    """The same origin, or the same host moved from http to https."""
    if url.host != target.host:
        return False
    secured = (url.scheme, target.scheme, url.port, target.port) == ("http", "https", None, None)
    return secured or (url.scheme, url.port) == (target.scheme, target.port)
