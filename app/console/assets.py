"""The style sheet and the script. Their addresses change with their content, so that browsers may keep them."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from litestar import Response, get
from litestar.params import FromPath

from app.errors import NotFoundError

_DIRECTORY = Path(__file__).parent / "static"
_MEDIA_TYPES = {"style.css": "text/css", "console.js": "text/javascript"}
_KEEP = "public, max-age=31536000, immutable"


@get("/static/{digest:str}/{name:str}", sync_to_thread=True)
def show_asset(digest: FromPath[str], name: FromPath[str]) -> Response[bytes]:
    """A page of another version of the server gets the file of this one, and does not keep it."""
    if name not in _MEDIA_TYPES:
        raise NotFoundError(f"the console has no file {name!r}")
    content = _content(name)
    headers = {"Cache-Control": _KEEP if digest == _digest(content) else "no-store"}
    return Response(content, media_type=_MEDIA_TYPES[name], headers=headers)


@cache
def asset_url(name: str) -> str:
    return f"/console/static/{_digest(_content(name))}/{name}"


@cache
def _content(name: str) -> bytes:
    return (_DIRECTORY / name).read_bytes()


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]
