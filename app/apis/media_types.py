"""Media types: what becomes of the bodies of requests and answers, by type, by their beginning and by the
document.

Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from app.base.values import Json

EVENT_STREAM: Final = "text/event-stream"
JSON_PATCH: Final = "application/json-patch+json"
_EVENTS: Final[dict[str, Json]] = {
    "type": "array",
    "items": {"type": "object", "properties": {"event": {"type": "string"}, "data": {}, "id": {"type": "string"}}},
}
_JSON: Final = re.compile(r"application/json|.*\+json", re.DOTALL)
_JSON_WORD: Final = re.compile(r"[/+._-]json(?![a-z0-9])", re.IGNORECASE)
_JSON_LINES: Final = re.compile(r"[a-z]+/((x-)?(ndjson|jsonl|jsonlines|json-lines)|(.*\+)?json-seq)", re.DOTALL)
FORM: Final = "application/x-www-form-urlencoded"
PARTS: Final = "multipart/form-data"
_MISSPELT: Final = {  # in documents of public APIs, by what their servers take
    PARTS: re.compile(r"((application|multipart)/)?(x-|multipart-)?form-?data|multipart/(x-)?(data|form)"),
    FORM: re.compile(r"((application|multipart|text)/)?(x-)?(www-)?form-?(url-?)?encoded"),
}
_XML: Final = re.compile(r"(application|text)/xml|.*\+xml", re.DOTALL)
_BINARY: Final = re.compile(
    r"(image|audio|video|font|model)/.*|application/(octet-stream|pdf|zip|gzip|x-gzip|x-tar|x-bzip2?|x-7z-compressed"
    r"|zstd|vnd\.(?!.*(json|text|yaml)).*|msword|wasm|java-archive|x-protobuf|protobuf|msgpack|x-msgpack|cbor)",
    re.DOTALL,
)

_OCTETS: Final = "application/octet-stream"
_BEGINNINGS: Final = (
    (rb"\x89PNG\r\n\x1a\n", "image/png"),
    (rb"\xff\xd8\xff", "image/jpeg"),
    (rb"GIF8[79]a", "image/gif"),
    (rb"RIFF....WEBP", "image/webp"),
    (rb"BM....\0\0\0\0", "image/bmp"),
    (rb"II\*\0|MM\0\*", "image/tiff"),
    (rb"\0\0\x01\0", "image/x-icon"),
    (rb"....ftypavi[fs]", "image/avif"),
    (rb"....ftyp(hei[cx]|mif1)", "image/heic"),
    (rb"\s*(<\?xml[^>]*>\s*)?(<!--.{0,500}?-->\s*)?<svg\b", "image/svg+xml"),
    (rb"RIFF....WAVE", "audio/wav"),
    (rb"ID3|\xff[\xfb\xf3\xf2]", "audio/mpeg"),
    (rb"OggS", "audio/ogg"),
    (rb"fLaC", "audio/flac"),
    (rb"....ftypM4A", "audio/mp4"),
    (rb"RIFF....AVI ", "video/x-msvideo"),
    (rb"....ftypqt", "video/quicktime"),
    (rb"....ftyp", "video/mp4"),
    (rb"\x1aE\xdf\xa3", "video/webm"),
    (rb"wOF2", "font/woff2"),
    (rb"%PDF-", "application/pdf"),
    (rb"PK(\x03\x04|\x05\x06)", "application/zip"),
    (rb"\x1f\x8b", "application/gzip"),
)
_KNOWN: Final = tuple((re.compile(pattern, re.DOTALL), kind) for pattern, kind in _BEGINNINGS)
_SNIFFED_BYTES: Final = 1_000

_MEDIA_TYPES = 10  # of one operation
_TYPE = re.compile(r"[\w!#$&^.+*-]{1,100}/[\w!#$&^.+*-]{1,100}(; ?[\w.-]{1,50}=[\w.+-]{1,50}){0,5}", re.ASCII)
_CHARSET = re.compile(r"; ?charset=[^;]*", re.IGNORECASE)
_REDIRECT = re.compile(r"3(\d\d|xx)", re.IGNORECASE)


def is_json(media_type: str) -> bool:
    return _JSON.fullmatch(media_type) is not None


def bare(media_type: str) -> str:
    """Without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def is_declared_json(media_type: str) -> bool:
    """Whether a document means JSON: also by types that are not registered, such as `text/json`.

    >>> [is_declared_json(each) for each in ("application/hal+json", "text/json", "application/jsonpath")]
    [True, True, False]
    """
    return _JSON_WORD.search(media_type) is not None and not is_json_lines(media_type)


def is_json_lines(media_type: str) -> bool:
    """Whether a body is JSON values one after the other.

    >>> [is_json_lines(each) for each in ("application/x-ndjson", "application/geo+json-seq", "application/json")]
    [True, True, False]
    """
    return _JSON_LINES.fullmatch(media_type) is not None


def is_form(media_type: str) -> bool:
    return media_type in (FORM, PARTS)


def as_meant(media_type: str) -> str:
    """The form that a document means by a type that no server knows; any other type as it is.

    >>> [as_meant(each) for each in ("application/form-data", "multipart/data", "text/csv")]
    ['multipart/form-data', 'multipart/form-data', 'text/csv']
    """
    kind = bare(media_type)
    found = (form for form, misspelt in _MISSPELT.items() if misspelt.fullmatch(kind))
    return media_type if is_form(kind) else next(found, media_type)


def is_html(media_type: str) -> bool:
    return media_type in ("text/html", "application/xhtml+xml")


def is_xml(media_type: str) -> bool:
    return _XML.fullmatch(media_type) is not None


def is_binary_media(media_type: str) -> bool:
    """Whether a body is bytes, even if it could be read as text.

    >>> [is_binary_media(each) for each in ("image/png", "image/svg+xml", "application/vnd.ms-excel", "text/csv")]
    [True, False, True, False]
    """
    return _BINARY.fullmatch(media_type) is not None and not is_xml(media_type) and not is_json(media_type)


def result_schema(media_type: str) -> dict[str, Json] | None:
    """The JSON Schema of the values that bodies become; None if it depends on the body.

    >>> result_schema("image/png")
    {'type': 'string', 'format': 'binary'}
    """
    media_type = bare(media_type)
    if media_type == EVENT_STREAM:
        return _EVENTS
    if media_type.startswith("text/") or is_xml(media_type) or is_json_lines(media_type):
        return {"type": "string"}
    return {"type": "string", "format": "binary"} if is_binary_media(media_type) else None


def file_type(content: bytes) -> str | None:
    """The media type that bytes begin as; None if they may be anything.

    >>> file_type(b"\\x89PNG\\r\\n\\x1a\\n"), file_type(b"words")
    ('image/png', None)
    """
    start = content[:_SNIFFED_BYTES]
    return next((kind for pattern, kind in _KNOWN if pattern.match(start)), None)


def listed_types(text: str) -> list[str]:
    """The types and ranges that a document lists with commas between them."""
    return [each.strip() for each in text.split(",")]


def fitting(offered: Sequence[str], content: bytes, *, is_text: bool = False) -> str | None:
    """The type, among those offered and within the ranges among them, that fits a body; None if none is known to.

    >>> fitting(["image/*"], b"\\xff\\xd8\\xff"), fitting(["image/png"], b"?"), fitting(["image/*"], b"?")
    ('image/jpeg', 'image/png', None)
    """
    named = [each for each in offered if "*" not in each]
    if len(offered) == 1 and named:
        return named[0]
    wanted = [kind for kind in (file_type(content), "text/plain" if is_text else _OCTETS) if kind]
    for kind in wanted:
        if any(_holds(each, kind) for each in offered):
            return next((each for each in named if _holds(each, kind)), kind)
    return next((each for each in named if is_binary_media(each) is not is_text), None)


def _holds(offered: str, kind: str) -> bool:
    """Whether a type is the one offered, or within the range."""
    main, _, sub = offered.partition(";")[0].strip().lower().partition("/")
    return main in ("*", kind.partition("/")[0]) and sub in ("*", kind.partition("/")[2])


class DocumentedAnswers(msgspec.Struct, frozen=True):
    """`accept` is the header that asks for them; "" if they are JSON, or the document does not name them."""

    accept: str = ""
    are_json: bool = False  # the document promises JSON and nothing else
    redirects: tuple[str, ...] = ()  # statuses, also "3xx"

    def has_redirect(self, status: int) -> bool:
        """Whether a redirect of this status is an answer of its own."""
        return bool({str(status), f"{status // 100}xx"} & set(self.redirects))


def documented_answers(
    statuses: Iterable[Json], contents: Iterable[Mapping[str, Json]], preferred: str = ""
) -> DocumentedAnswers:
    """`statuses` are those of all answers, `contents` those of the successful ones, JSON is preferred among them
    unless the document has one value for the header itself.

    >>> documented_answers([200, "303"], [{"text/csv": {}, "application/json": {}}])
    DocumentedAnswers(accept='application/json, text/csv;q=0.9, */*;q=0.1', are_json=False, redirects=('303',))
    """
    every = dict.fromkeys(_CHARSET.sub("", str(each)).strip() for content in contents for each in content)
    named = [each for each in every if _TYPE.fullmatch(each)]
    redirects = dict.fromkeys(str(each).lower() for each in statuses if _REDIRECT.fullmatch(str(each)))
    are_json = bool(every) and all(map(is_declared_json, every))
    return DocumentedAnswers(_accept(named, preferred), are_json, tuple(redirects))


def _accept(named: list[str], preferred: str) -> str:
    """JSON is asked for, too, where nothing but files is answered: errors are JSON."""
    wanted = sorted(named, key=lambda each: not is_declared_json(each))[:_MEDIA_TYPES]
    first = [preferred] if _TYPE.fullmatch(preferred) else wanted[:1]
    if first in ([], ["*/*"]):
        return ""
    others = [each for each in dict.fromkeys([*wanted, "application/json"]) if each not in (*first, "*/*")]
    if not others and first == ["application/json"]:
        return ""
    return ", ".join([*first, *(f"{each};q=0.9" for each in others), "*/*;q=0.1"])
