"""What has been done, told once on the page that follows: kept in a cookie until then."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from litestar.datastructures import Cookie

_NAME = "sage_notice"
_SECONDS = 60
_MOST = 1_000  # characters: cookies have 4 kB
_COOKIE: dict[str, Any] = {"key": _NAME, "path": "/console", "httponly": True, "samesite": "strict"}


def kept(notice: str) -> list[Cookie]:
    """
    >>> read({"sage_notice": kept("revoked “ci”")[0].value})
    'revoked “ci”'
    >>> read({"sage_notice": "no base64"}), read({})
    (None, None)
    """
    value = urlsafe_b64encode(notice[:_MOST].encode()).decode().rstrip("=")
    return [Cookie(value=value, max_age=_SECONDS, **_COOKIE)]


def read(cookies: Mapping[str, str | None]) -> str | None:
    value = cookies.get(_NAME) or ""
    try:
        return urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode() or None
    except ValueError:
        return None


def shown(notice: str | None) -> Sequence[Cookie]:
    """Forget a notice that the answer shows."""
    return [Cookie(value="", max_age=0, **_COOKIE)] if notice else []
