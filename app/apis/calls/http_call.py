"""Makes one HTTP call, within limits of time and size, and reads what its answer is to the agent's code.

A body is JSON, text, bytes or server-sent events (WHATWG HTML, section 9.2); of the headers agents see some.
"""

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

import httpx
import msgspec

from app.apis.catalog import READING
from app.apis.credentials.schemes import CERTIFICATE
from app.apis.media_types import (
    EVENT_STREAM,
    DocumentedAnswers,
    bare,
    is_binary_media,
    is_declared_json,
    is_html,
    is_json,
    is_xml,
)
from app.base.errors import HostError, NoConnectionError
from app.base.secrets import is_telling
from app.base.untrusted import JsonError, decode_json
from app.base.untrusted_http import BodyError, BodySizeError, read_into
from app.base.values import CallResponse, Json
from app.sandbox.protocol import Answer, RefusalError
from app.sandbox.wire import MAX_DEPTH, MAX_NODES

Sending: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited when the connection is open, right before a request is written. If it raises, nothing is sent."""

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

_LINE_END = re.compile(r"\r\n|\r|\n")

_ERROR_CHARS = 500
_BODY_CHARS = 20_000  # of an error that are kept
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([A-Za-z0-9._:+-]{1,40})", re.IGNORECASE)
_XML_ENCODING: Final = re.compile(rb"\s*<\?xml[^>]{1,200}?encoding\s*=\s*[\"']([A-Za-z0-9._:+-]{1,40})")
_HEAD_BYTES: Final = 20_000  # by which a page is told
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ELEMENT: Final = re.compile(r"<[!?a-z/]", re.IGNORECASE)
_PAGE: Final = re.compile(  # after what may stand before it
    r"(?:[\s\0\ufeff\u200b]++|<!--.{0,2000}?-->|<\?xml[^>]{0,500}>)*+<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_QUOTES: Final = 4  # of a value that has a name, and is a text
_NO_JSON: Final = (b"NaN", b"-Infinity", b"Infinity")  # numbers that some servers write
_CHARACTER_SETS: Final = re.compile(  # of the codecs of Python, those of the Web; the others are slow, or no text
    r"utf-8(-sig)?|utf-(16|32)(-[bl]e)?|ascii|iso8859-\d+|cp\d+|koi8-\w+|mac-\w+|tis-620|kz1048|ptcp154"
    r"|gb2312|gbk|gb18030|hz|big5(hkscs)?|euc_\w+|shift_jis\w*|iso2022_\w+|johab"
)

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


class GoingOut:
    """A `Sending`, after which a call was `sent`: from then on it may have changed something. `before` is awaited
    first.
    """

    def __init__(self, before: Sending | None) -> None:
        self.sent = False
        self._before = before

    async def __call__(self) -> None:
        if self._before is not None:
            await self._before()
        self.sent = True


class WireRequest(msgspec.Struct, frozen=True):
    """What a `Caller` sends. Of a protocol that is not plain HTTP, `content` are the parameters of the method."""

    method: str
    url: str
    headers: dict[str, str] = {}
    content: bytes | None = None
    clean: Callable[[str], str] = str  # removes secrets from a text that is truncated
    sending: Sending | None = None
    certificate: str | None = None  # names a file for mutual TLS
    safe: bool | None = None  # whether it only reads; None: its method says so
    approved: bool = False  # a person approved its method and address
    answers: DocumentedAnswers = DocumentedAnswers()

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, so that it may be sent again, and elsewhere."""
        return self.method in READING if self.safe is None else self.safe


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


def events(text: str, cut: str = "") -> list[Json]:
    """The events in order: `event`, `data` and, where given, `id`. Data that is a JSON object or array is decoded.

    If the stream was `cut`, a last event that no server sends has the reason. An event that is not whole is none.

    >>> events('data: {"n": 1}\\n\\nevent: end\\ndata: bye\\n\\n')
    [{'event': 'message', 'data': {'n': 1}}, {'event': 'end', 'data': 'bye'}]
    """
    found: list[Json] = []
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in _LINE_END.split(text.removeprefix("\ufeff")):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.append({"event": fields.get("event") or "message", "data": _decoded("\n".join(data))})
                found[-1] |= {"id": fields["id"]} if "id" in fields else {}
            data, fields = [], {}
        elif name == "data":
            data.append(value)
        elif name in ("event", "id"):
            fields[name] = value
    return [*found, {"event": "incomplete", "data": None, "reason": cut}] if cut else found


def _decoded(data: str) -> Json:
    if not data.startswith(("{", "[")):
        return data
    try:
        return decode_json(data.encode(), max_values=MAX_NODES, max_depth=MAX_DEPTH // 2)
    except (JsonError, UnicodeEncodeError):
        return data


class ReadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP response that was read to its end, or an event stream as far as it came."""

    status: int
    location: str | None  # target of a redirect
    content_type: str = ""
    headers: dict[str, str] = {}  # those that agents may see
    challenge: str = ""  # the header WWW-Authenticate
    body: bytes = b""
    cut: str = ""  # why the end is missing, of an event stream
    remark: str = ""  # what the value does not show

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        return bare(self.content_type)


def value_of(answer: ReadResponse) -> Json:
    """JSON, text, a list of events, or bytes; None if the body is empty.

    Raises HostError, an ApiError, if it is not the JSON that it claims to be.
    """
    if answer.media_type == EVENT_STREAM and (answer.body or answer.cut):
        return events(answer.body.decode(_charset(answer), "replace"), answer.cut)
    if not answer.body:
        return None
    if is_declared_json(answer.media_type):
        try:
            return _json(answer)
        except JsonError as error:
            if is_json(answer.media_type):
                raise HostError("ApiError", f"the answer is not the JSON it claims to be: {error}") from error
    if is_binary_media(answer.media_type):
        return answer.body
    try:
        return answer.body.decode(_charset(answer)).removeprefix("\ufeff")
    except UnicodeDecodeError:
        return answer.body


def _finite(answer: ReadResponse) -> ReadResponse:
    """The answer with null in place of the numbers that some servers write, and JSON lacks."""
    if not is_declared_json(answer.media_type) or not any(word in answer.body for word in _NO_JSON):
        return answer
    body = _with_null(answer.body)
    if body == answer.body:
        return answer
    return msgspec.structs.replace(answer, body=body, remark="NaN and Infinity, which JSON lacks, are None here")


def _with_null(body: bytes) -> bytes:
    """With null in place of these words outside of strings. Takes linear time, whatever the body is."""
    if b"\x01" in body or b"\x02" in body:  # which no JSON contains: they stand for escapes meanwhile
        return body
    masked = body.replace(rb"\\", b"\x01").replace(rb"\"", b"\x02")
    if masked.count(b'"') > _QUOTES * MAX_NODES:  # it is refused for its size
        return body
    parts = masked.split(b'"')  # every second is a string
    bare = b'"'.join(parts[::2])
    for word in _NO_JSON:
        bare = bare.replace(word, b"null")
    parts[::2] = bare.split(b'"')
    return b'"'.join(parts).replace(b"\x02", rb"\"").replace(b"\x01", rb"\\")


def _is_page(answer: ReadResponse) -> bool:
    """Whether the body is an HTML page: by its type if it has one, and it has markup, or else by its beginning."""
    head = answer.body.lstrip()[:_HEAD_BYTES]
    marked = next((charset for mark, charset in _MARKS if head.startswith(mark)), None)
    text = head.decode(marked or _charset(answer), "replace")
    if is_html(answer.media_type):
        return _ELEMENT.search(text) is not None and not text.lstrip().startswith(("{", "[", '"'))
    return _PAGE.match(text) is not None


def refusal(answer: ReadResponse, clean: Callable[[str], str]) -> RefusalError:
    """The error that a status other than 2xx is. `clean` removes secrets from a text that is truncated."""
    cleaned, start = _cleaned(answer, clean)
    message = f"Response status code is {answer.status}: {start}"
    body: Json = cleaned[:_BODY_CHARS] or None
    if is_declared_json(answer.media_type) and len(answer.body) <= _BODY_CHARS:
        with suppress(JsonError):
            body = _json(answer)
    response = CallResponse(status=answer.status, headers=answer.headers, body=body)
    return RefusalError(message, response, answer.challenge)


def _json(answer: ReadResponse) -> Json:
    """JSON is UTF-8, but older servers put a mark before it, or send it in the character set that they declare."""
    body, charset = answer.body.removeprefix(codecs.BOM_UTF8), _charset(answer)
    try:
        return decode_json(body, max_values=MAX_NODES, max_depth=MAX_DEPTH)
    except JsonError:
        if charset == "utf-8":
            raise
    try:
        body = answer.body.decode(charset).encode()
    except UnicodeError as error:
        raise JsonError(str(error)) from error
    return decode_json(body, max_values=MAX_NODES, max_depth=MAX_DEPTH)


def _cleaned(answer: ReadResponse, clean: Callable[[str], str]) -> tuple[str, str]:
    """The body without secrets, and its beginning on one line: truncated before, half a secret could stay."""
    charset = _charset(answer)
    whole, head = (part.decode(charset, "replace") for part in (answer.body, answer.body[: 4 * _ERROR_CHARS]))
    cleaned = clean(whole)
    text = " ".join((head if cleaned == whole else cleaned[: 4 * _ERROR_CHARS]).split())
    return cleaned, text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


def _charset(answer: ReadResponse) -> str:
    """The declared character set if it is one, otherwise UTF-8."""
    found = _CHARSET.search(answer.content_type[:500])
    declared = found[1] if found else None
    if declared is None and is_xml(answer.media_type) and (inside := _XML_ENCODING.match(answer.body[:300])):
        declared = inside[1].decode()
    try:
        name = codecs.lookup(declared).name if declared else "utf-8"
    except LookupError:
        return "utf-8"
    return name if _CHARACTER_SETS.fullmatch(name) else "utf-8"


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
            if target is None or not _may_follow(request, answer, url, target, here=here):
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
    """Raises HostError, a RefusalError, for an answer that is no result."""
    answer = _finite(answer)
    if not answer.is_success:
        if not _is_result(request, answer):
            raise refusal(answer, request.clean)
    elif request.answers.are_json and _is_page(answer):
        start = _cleaned(answer, request.clean)[1]
        raise _refused(request, answer, f"an HTML page, where the document promises JSON: {start}")
    elif answer.location is not None and not request.is_read:
        url = httpx.URL(request.url)
        raise _redirected(request, answer, url, _target(url, answer)[0])
    return Answer(value_of(answer), answer.status, answer.headers, remark=answer.remark)


def _refresh(response: httpx.Response) -> str | None:
    """The address to which a success sends browsers, as some servers do instead of a redirect."""
    found = _REFRESH.match(response.headers.get("refresh", "")) if response.status_code == 200 else None
    return found[1] if found else None


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


def _may_follow(
    request: WireRequest, answer: ReadResponse, url: httpx.URL, target: httpx.URL, *, here: bool
) -> bool:
    """Whether the same request may be sent again, `here`, or another one to another address."""
    if here:
        return request.is_read or answer.status in (307, 308)
    return request.is_read and not request.approved and _same_server(url, target)


def redirect_refusal(request: WireRequest, response: httpx.Response) -> RefusalError | None:
    """Why a request of a protocol on top of HTTP does not follow a redirect; None if it may: the same rule."""
    url, location = response.request.url, response.headers.get("location")
    answer = ReadResponse(status=response.status_code, location=location)
    target, here = _target(url, answer)
    if target is not None and _may_follow(request, answer, url, target, here=here):
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
