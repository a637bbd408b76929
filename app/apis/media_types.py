"""Media types, by what becomes of the bodies of requests and answers."""

import re
from typing import Final

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
