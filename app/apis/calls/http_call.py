"""Makes one HTTP call, within limits of time and size."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

import httpx

from app.apis.authentication import CERTIFICATE
from app.apis.media_types import EVENT_STREAM, bare
from app.base.errors import HostError, NoConnectionError
from app.base.untrusted_http import BodyError, BodySizeError, read_into
from app.base.values import CallResponse
from app.gateway.answer_value import ReadResponse, finite, is_page, refusal, start_of, value_of
from app.gateway.response_headers import passed_headers
from app.gateway.wire_request import Sending, WireRequest
from app.sandbox.protocol import Answer, RefusalError

MAX_ANSWER_BYTES = 3 << 20  # fits into a frame of the sandbox
REDIRECTS = frozenset({300, 301, 302, 303, 307, 308})
_READ_AT_ONCE = 1 << 16  # bytes of an answer, without a thread: a hostile one takes a second
_HOPS = 5
_REFRESH = re.compile(r"\s*[\d.]*\s*[;,]?\s*url\s*=\s*[\"']?([^\"'\s]{1,2000})", re.IGNORECASE)
_ADDRESS_CHARS = 500  # of a redirect, in messages
_HEADERS = {
    "Accept": "application/json, text/*;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "sage-server",
}


class HttpCaller:
    """Sends requests through a shared client. Nothing of a response, such as a cookie, reaches other requests."""

    def __init__(self, client: httpx.AsyncClient, *, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._extensions: dict[str, object] = {"timeout": httpx.Timeout(timeout).as_dict()}

    async def send(self, request: WireRequest) -> Answer:
        """The parsed response, which is that of this request, not of one that a redirect names instead.

        Raises HostError, an ApiError, for every failure: a RefusalError for an answer that is no result.
        """
        end = asyncio.get_running_loop().time() + self._timeout
        extensions = self._extensions
        if request.sending is not None:
            extensions = extensions | {"trace": _before(request.sending)}
        if request.certificate is not None:
            extensions = extensions | {CERTIFICATE: request.certificate}
        try:
            answer = await self._follow(request, extensions, end)
            if len(answer.body) <= _READ_AT_ONCE:
                return _result(request, answer)
            return await asyncio.to_thread(_result, request, answer)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = str(error) or type(error).__name__
            raise NoConnectionError(f"the server cannot be reached: {reason}") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise HostError("ApiError", f"no answer within {self._timeout:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, UnicodeError) as error:
            reason = str(error) or type(error).__name__
            raise HostError("ApiError", f"the server cannot be reached: {reason}") from error

    async def _follow(self, request: WireRequest, extensions: dict[str, object], end: float) -> ReadResponse:
        """The answer that no redirect leads on from.

        Another address is another call. A change stays at its own, apart from a slash at the end, to which 307 and
        308 send the same request; so does a call that a person approved. A read follows within the server.
        """
        url, method, headers, content = httpx.URL(request.url), request.method, request.headers, request.content
        for _ in range(_HOPS):
            answer = await self._once(
                httpx.Request(
                    method, url, headers={**_HEADERS, **headers}, content=content, extensions=extensions
                ),
                end,
            )
            if answer.status not in REDIRECTS or _is_result(request, answer):
                return answer
            target, here = _target(url, answer)
            if target is None or not (_repeats(request, answer) if here else _moves(request, url, target)):
                raise _redirected(request, answer, url, target)
            url = url.copy_with(scheme=target.scheme, raw_path=target.raw_path)  # of the same server
            if (
                not here
                and method != "HEAD"
                and (answer.status == 303 or (answer.status < 303 and method == "POST"))
            ):
                method, content = "GET", None
                headers = {name: value for name, value in headers.items() if name != "Content-Type"}
        raise _refused(request, answer, f"the server redirects more than {_HOPS} times")

    async def _once(self, request: httpx.Request, end: float) -> ReadResponse:
        async with asyncio.timeout_at(end):
            response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            body, cut = await self._body(response, end)
            content_type = response.headers.get("content-type", "")
            return ReadResponse(
                status=response.status_code,
                location=response.headers["location"] if response.has_redirect_location else _refresh(response),
                content_type=content_type,
                headers=passed_headers(response.headers.multi_items()),
                challenge=response.headers.get("www-authenticate", ""),
                body=body,
                cut=cut,
            )
        finally:
            await response.aclose()

    async def _body(self, response: httpx.Response, end: float) -> tuple[bytes, str]:
        """The body, and why the end of an event stream is missing."""
        body = bytearray()
        is_stream = response.is_success and bare(response.headers.get("content-type", "")) == EVENT_STREAM
        try:
            async with asyncio.timeout_at(end):
                await read_into(body, response, MAX_ANSWER_BYTES)
        except (TimeoutError, httpx.HTTPError, BodyError) as error:
            if is_stream:
                return bytes(body[:MAX_ANSWER_BYTES]), self._cut(error)
            if not isinstance(error, BodyError):
                raise
            hint = "; ask for less at once" if isinstance(error, BodySizeError) else ""
            raise HostError("ApiError", f"the answer {error}{hint}") from error
        return bytes(body), ""

    def _cut(self, error: Exception) -> str:
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return f"it did not end within {self._timeout:g} seconds"
        return f"it {error}" if isinstance(error, BodyError) else f"the connection broke: {error}"


def _result(request: WireRequest, answer: ReadResponse) -> Answer:
    """Raises HostError for an answer that is no result."""
    answer = finite(answer)
    _check(request, answer)
    return Answer(value_of(answer), answer.status, answer.headers, remark=answer.remark)


def _refresh(response: httpx.Response) -> str | None:
    """The address to which a success sends browsers, as some servers do instead of a redirect."""
    found = _REFRESH.match(response.headers.get("refresh", "")) if response.status_code == 200 else None
    return found[1] if found else None


def _check(request: WireRequest, answer: ReadResponse) -> None:
    """Raises RefusalError for an answer that is no result."""
    if not answer.is_success:
        if not _is_result(request, answer):
            raise refusal(answer, request.clean)
    elif request.answers.are_json and is_page(answer):
        page = f"an HTML page, where the document promises JSON: {start_of(answer, request.clean)}"
        raise _refused(request, answer, page)
    elif answer.location is not None and not request.is_read:
        url = httpx.URL(request.url)
        raise _redirected(request, answer, url, _target(url, answer)[0])


def _before(sending: Sending) -> Callable[[str, object], Awaitable[None]]:
    """A tracer of httpcore's."""

    async def trace(event: str, _: object) -> None:
        if event.endswith(".send_request_headers.started"):
            await sending()

    return trace


def _is_result(request: WireRequest, answer: ReadResponse) -> bool:
    """Whether a redirect is how the operation of a change ends well, by its document."""
    return not request.is_read and answer.status in REDIRECTS and request.answers.has_redirect(answer.status)


def _target(url: httpx.URL, answer: ReadResponse) -> tuple[httpx.URL | None, bool]:
    """Where a redirect leads, None if it does not say so, and whether the same request is asked for there."""
    try:
        target = None if answer.location is None else url.join(answer.location)
    except (httpx.InvalidURL, UnicodeError):
        target = None
    return target, target is not None and answer.status != 303 and _differs_by_slash(url, target)


def _repeats(request: WireRequest, answer: ReadResponse) -> bool:
    """Whether the same request may be sent again, to the same address."""
    return request.is_read or answer.status in (307, 308)


def _moves(request: WireRequest, url: httpx.URL, target: httpx.URL) -> bool:
    """Whether a request may lead to another address."""
    return request.is_read and not request.approved and _same_server(url, target)


def redirect_refusal(request: WireRequest, response: httpx.Response) -> RefusalError | None:
    """Why a request of a protocol on top of HTTP does not follow a redirect; None if it may: the same rule."""
    url, location = response.request.url, response.headers.get("location")
    answer = ReadResponse(
        status=response.status_code, location=location, content_type="", headers={}, challenge="", body=b""
    )
    target, here = _target(url, answer)
    if target is not None and (_repeats(request, answer) if here else _moves(request, url, target)):
        return None
    return _redirected(request, answer, url, target)


def _redirected(
    request: WireRequest, answer: ReadResponse, url: httpx.URL, target: httpx.URL | None
) -> RefusalError:
    address = request.clean(str(target) if target else answer.location or "no address")[:_ADDRESS_CHARS]
    owner = "" if target is None or _same_server(url, target) else "another server, "
    return _refused(request, answer, f"it redirects to {owner}{address}, which is not followed")


def _refused(request: WireRequest, answer: ReadResponse, reason: str) -> RefusalError:
    """An answer that is no result, though the server did not call it an error."""
    doubt = "" if request.is_read else f"; whether this {request.method} has changed anything is not known"
    response = CallResponse(status=answer.status, headers=answer.headers)
    return RefusalError(f"Response status code is {answer.status}: {reason}{doubt}", response)


def _differs_by_slash(url: httpx.URL, target: httpx.URL) -> bool:
    """Whether both are the same address, or the same but for a slash at the end of the path."""
    return _same_origin(url, target) and _without_slash(url) == _without_slash(target)


def _without_slash(url: httpx.URL) -> tuple[str, list[tuple[str, str]]]:
    path, _, query = url.raw_path.decode().partition("?")
    return path.removesuffix("/"), parse_qsl(query, keep_blank_values=True)


def _same_server(url: httpx.URL, target: httpx.URL) -> bool:
    """The same origin, or the same host moved from http to https."""
    secured = (url.scheme, target.scheme, url.port, target.port) == ("http", "https", None, None)
    return _same_origin(url, target) or (secured and url.host == target.host)


def _same_origin(url: httpx.URL, target: httpx.URL) -> bool:
    return (url.scheme, url.host, url.port) == (target.scheme, target.host, target.port)
