"""The transport of the SDK's HTTP client: all it sends goes through the gateway's client, within its limits."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import httpx2

from app.base.errors import HostError, NoConnectionError, ShortageError
from app.base.processes import shortage_of
from app.base.untrusted import JsonError, decode_json
from app.base.untrusted_http import BodyError, read_body
from app.gateway.http_call import REDIRECTS, redirect_refusal
from app.gateway.mcp_client.exchange import AccessRefusedError, Exchange, exchange

_EVENTS = "text/event-stream"
_KEPT = ("content-type", "location", "mcp-session-id")
_SESSION = "mcp-session-id"
_OWN = {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
_ADDED = {"Accept-Encoding": "identity", "User-Agent": "sage-server"}
_ERROR_VALUES, _ERROR_DEPTH = 1_000, 20
_UNANSWERED = 502
_DENIED = (401, 403)
_UNCONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, NoConnectionError)


class HttpBridge(httpx2.AsyncBaseTransport):
    """Failures are noted in the request's exchange, and become an answer: an exception would end the session."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        ours = exchange.get()
        if request.method == "POST":
            ours.failure, ours.unreachable = None, False
        try:
            response = await self._client.send(await _outgoing(request, ours), stream=True, follow_redirects=False)
        except (HostError, httpx.HTTPError, httpx.InvalidURL) as error:
            ours.unreachable = True
            if isinstance(error, _UNCONNECTED) and (shortage := shortage_of(error)) is not None:
                ours.withheld = ShortageError(shortage)
            reason = f"the server cannot be reached: {_reason(error)}"
            return _unanswered(request, ours, reason, connected=not isinstance(error, _UNCONNECTED))
        try:
            return await _answer(request, response, ours)
        except (BodyError, httpx.HTTPError) as error:
            await response.aclose()
            return _unanswered(request, ours, f"the answer {_reason(error)}")


async def _outgoing(request: httpx2.Request, ours: Exchange) -> httpx.Request:
    read = None if ours.endless or request.method == "GET" else ours.seconds
    extensions: dict[str, object] = {"timeout": httpx.Timeout(ours.seconds, read=read).as_dict()}
    if ours.sending is not None and request.method == "POST":
        extensions["trace"] = _before(ours.sending, ours)
    headers = {name: text for name, text in request.headers.items() if name.lower() not in _OWN}
    content = await request.aread()
    return httpx.Request(
        request.method, str(request.url), headers=headers | _ADDED, content=content, extensions=extensions
    )


def _before(sending: Callable[[], Awaitable[None]], ours: Exchange) -> Callable[[str, object], Awaitable[None]]:
    """A tracer of httpcore's. What `sending` raises is kept for the caller: here it would end the session."""

    async def trace(event: str, _: object) -> None:
        if not event.endswith(".send_request_headers.started"):
            return
        try:
            await sending()
        except Exception as error:
            ours.withheld = error
            raise httpx.ConnectError("it was not sent") from error

    return trace


async def _answer(request: httpx2.Request, response: httpx.Response, ours: Exchange) -> httpx2.Response:
    headers = {name: response.headers[name] for name in _KEPT if name in response.headers}
    if request.method == "POST" and ours.request is not None and response.status_code in REDIRECTS:
        ours.failure = redirect_refusal(ours.request, response)
        if ours.failure is not None:
            headers.pop("location", None)
    if response.status_code == 404 and _SESSION in request.headers:
        ours.forgotten = True
    if response.is_success and _media_type(response) == _EVENTS:
        stream = _Events(response, ours)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, request=request)
    body = await read_body(response, ours.bytes_left)
    await response.aclose()
    ours.bytes_left -= len(body)
    text = f"Response status code is {response.status_code}: {body.decode(errors='replace')}"
    if request.method == "POST" and response.status_code in _DENIED:
        challenge = response.headers.get("www-authenticate", "")
        ours.failure = AccessRefusedError(text, response.status_code, challenge)
    elif request.method == "POST" and response.is_error and not _is_rpc_error(body):
        ours.failure = HostError("ApiError", text)
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


class _Events(httpx2.AsyncByteStream):
    """An event stream within the exchange's size. One that breaks ends, and the SDK misses its answer."""

    def __init__(self, response: httpx.Response, ours: Exchange) -> None:
        self._response = response
        self._exchange = ours

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._response.aiter_raw():
                self._exchange.bytes_left -= len(part)
                if self._exchange.bytes_left < 0:
                    self._exchange.failure = HostError("ApiError", "the answer is too large; ask for less at once")
                    return
                yield part
        except httpx.HTTPError as error:
            self._exchange.failure = HostError("ApiError", f"the answer was cut off: {_reason(error)}")

    async def aclose(self) -> None:
        await self._response.aclose()


def _is_rpc_error(body: bytes) -> bool:
    try:
        answer = decode_json(body, max_values=_ERROR_VALUES, max_depth=_ERROR_DEPTH)
    except JsonError:
        return False
    return isinstance(answer, dict) and "jsonrpc" in answer and isinstance(answer.get("error"), dict)


def _unanswered(
    request: httpx2.Request, ours: Exchange, reason: str, *, connected: bool = True
) -> httpx2.Response:
    if request.method == "POST":
        ours.failure = HostError("ApiError", reason) if connected else NoConnectionError(reason)
    return httpx2.Response(_UNANSWERED, request=request)


def _media_type(response: httpx.Response) -> str:
    return re.sub(r"\s*;.*", "", response.headers.get("content-type", ""), flags=re.DOTALL).strip().lower()


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, HostError) else str(error) or type(error).__name__
