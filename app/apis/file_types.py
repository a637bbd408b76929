"""The media type of bytes by their beginning, and which of those that a document offers fits a body. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from app.apis.media_types import is_binary_media

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
