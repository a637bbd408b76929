"""Makes one HTTP call, within limits of time and size."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from app.apis.authentication import CERTIFICATE
from app.apis.media_types import EVENT_STREAM, bare
from app.errors import HostError, NoConnectionError
from app.gateway.answer_value import ReadResponse, refusal, value_of
from app.gateway.response_headers import passed_headers
from app.gateway.wire_request import Sending, WireRequest
from app.records import CallResponse
from app.sandbox.protocol import Answer, RefusalError
from app.untrusted.http_body import BodyError, BodySizeError, read_into

MAX_ANSWER_BYTES = 3 << 20  # fits into a frame of the sandbox
_REDIRECTS = 5
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
        """The parsed response. Redirects to other servers are refused.

        Raises HostError, an ApiError, for every failure: a RefusalError for a status other than 2xx.
        """
        end = asyncio.get_running_loop().time() + self._timeout
        extensions = self._extensions
        if request.sending is not None:
            extensions = extensions | {"trace": _before(request.sending)}
        if request.certificate is not None:
            extensions = extensions | {CERTIFICATE: request.certificate}
        try:
            answer = await self._follow(request, extensions, end)
            if not 200 <= answer.status < 300:
                raise refusal(answer, request.clean)
            return Answer(value_of(answer), answer.status, answer.headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = str(error) or type(error).__name__
            raise NoConnectionError(f"the server cannot be reached: {reason}") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise HostError("ApiError", f"no answer within {self._timeout:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, UnicodeError) as error:
            reason = str(error) or type(error).__name__
            raise HostError("ApiError", f"the server cannot be reached: {reason}") from error

    async def _follow(self, request: WireRequest, extensions: dict[str, object], end: float) -> ReadResponse:
        url, method, headers, content = httpx.URL(request.url), request.method, request.headers, request.content
        for _ in range(_REDIRECTS):
            answer = await self._once(
                httpx.Request(
                    method, url, headers={**_HEADERS, **headers}, content=content, extensions=extensions
                ),
                end,
            )
            if answer.location is None:
                return answer
            target = url.join(answer.location)
            if not _same_server(url, target):
                raise _redirected(answer, target)
            url = target
            if answer.status == 303 or (answer.status < 303 and method == "POST"):
                method, content = "GET", None
                headers = {name: value for name, value in headers.items() if name != "Content-Type"}
        raise HostError("ApiError", f"the server redirects more than {_REDIRECTS} times")

    async def _once(self, request: httpx.Request, end: float) -> ReadResponse:
        async with asyncio.timeout_at(end):
            response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            body, cut = await self._body(response, end)
            content_type = response.headers.get("content-type", "")
            return ReadResponse(
                status=response.status_code,
                location=response.headers["location"] if response.has_redirect_location else None,
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


def _before(sending: Sending) -> Callable[[str, object], Awaitable[None]]:
    """A tracer of httpcore's."""

    async def trace(event: str, _: object) -> None:
        if event.endswith(".send_request_headers.started"):
            await sending()

    return trace


def _redirected(answer: ReadResponse, target: httpx.URL) -> RefusalError:
    message = f"it redirects to another server, {target.host}, which is not followed"
    response = CallResponse(status=answer.status, headers=answer.headers)
    return RefusalError(f"Response status code is {answer.status}: {message}", response)


def _same_server(url: httpx.URL, target: httpx.URL) -> bool:
    """The same origin, or the same host moved from http to https."""
    if url.host != target.host:
        return False
    secured = (url.scheme, target.scheme, url.port, target.port) == ("http", "https", None, None)
    return secured or (url.scheme, url.port) == (target.scheme, target.port)
