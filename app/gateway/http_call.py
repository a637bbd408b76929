"""Makes one HTTP call, within limits of time and size."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from app.apis.authentication import CERTIFICATE
from app.errors import HostError
from app.gateway.answer_value import ReadResponse, refusal, value_of
from app.gateway.response_headers import passed_headers
from app.gateway.wire_request import Sending, WireRequest
from app.records import CallResponse
from app.sandbox.protocol import Answer, RefusalError
from app.untrusted.http_body import BodyError, BodySizeError, read_body

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
        extensions = self._extensions
        if request.sending is not None:
            extensions = extensions | {"trace": _before(request.sending)}
        if request.certificate is not None:
            extensions = extensions | {CERTIFICATE: request.certificate}
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._follow(request, extensions)
                if not 200 <= answer.status < 300:
                    raise refusal(answer, request.clean)
                return Answer(value_of(answer), answer.status, answer.headers)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise HostError("ApiError", f"no answer within {self._timeout:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict) as error:
            reason = str(error) or type(error).__name__
            raise HostError("ApiError", f"the server cannot be reached: {reason}") from error

    async def _follow(self, request: WireRequest, extensions: dict[str, object]) -> ReadResponse:
        url, method, headers, content = httpx.URL(request.url), request.method, request.headers, request.content
        for _ in range(_REDIRECTS):
            answer = await self._once(
                httpx.Request(method, url, headers={**_HEADERS, **headers}, content=content, extensions=extensions)
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

    async def _once(self, request: httpx.Request) -> ReadResponse:
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            content_type = response.headers.get("content-type", "")
            return ReadResponse(
                status=response.status_code,
                location=response.headers["location"] if response.has_redirect_location else None,
                content_type=content_type,
                headers=passed_headers(response.headers.multi_items()),
                challenge=response.headers.get("www-authenticate", ""),
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
