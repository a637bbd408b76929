"""What the body of an HTTP response is to the agent's code: JSON, text, bytes or events. Pure."""

import codecs
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from app.apis.media_types import EVENT_STREAM, is_binary_media, is_declared_json, is_html, is_json, is_xml
from app.base.errors import HostError
from app.base.untrusted import JsonError, decode_json
from app.base.values import CallResponse, Json
from app.gateway.event_stream import events
from app.sandbox.protocol import RefusalError
from app.sandbox.wire import MAX_DEPTH, MAX_NODES

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


class ReadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP response that was read to its end, or an event stream as far as it came."""

    status: int
    location: str | None  # target of a redirect
    content_type: str
    headers: dict[str, str]  # those that agents may see
    challenge: str  # the header WWW-Authenticate
    body: bytes
    cut: str = ""  # why the end is missing, of an event stream
    remark: str = ""  # what the value does not show

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()


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


def finite(answer: ReadResponse) -> ReadResponse:
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


def is_page(answer: ReadResponse) -> bool:
    """Whether the body is an HTML page: by its type if it has one, and it has markup, or else by its beginning."""
    head = answer.body.lstrip()[:_HEAD_BYTES]
    marked = next((charset for mark, charset in _MARKS if head.startswith(mark)), None)
    text = head.decode(marked or _charset(answer), "replace")
    if is_html(answer.media_type):
        return _ELEMENT.search(text) is not None and not text.lstrip().startswith(("{", "[", '"'))
    return _PAGE.match(text) is not None


def start_of(answer: ReadResponse, clean: Callable[[str], str]) -> str:
    """The beginning of the body, on one line. `clean` removes secrets from a text that is truncated."""
    whole = answer.body.decode(_charset(answer), "replace")
    return _short(answer, whole, clean(whole))


def refusal(answer: ReadResponse, clean: Callable[[str], str]) -> RefusalError:
    """The error that a status other than 2xx is. `clean` removes secrets from a text that is truncated."""
    whole = answer.body.decode(_charset(answer), "replace")
    cleaned = clean(whole)
    message = f"Response status code is {answer.status}: {_short(answer, whole, cleaned)}"
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


def _short(answer: ReadResponse, whole: str, cleaned: str) -> str:
    """The body on one line, truncated after it was cleaned, or the beginning of a secret could stay."""
    head = answer.body[: 4 * _ERROR_CHARS].decode(_charset(answer), "replace")
    text = " ".join((head if cleaned == whole else cleaned[: 4 * _ERROR_CHARS]).split())
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."


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
