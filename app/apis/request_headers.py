"""Headers that an API document cannot make arguments of: connection, route and credentials are ours."""

import re
from typing import Final

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")  # a token (RFC 9110, section 5.6.2)
_IGNORED: Final = {"accept", "content-type", "authorization"}  # as OpenAPI says
_FRAMING: Final = {
    "host",
    "connection",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "accept-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "keep-alive",
    "http2-settings",
    "cookie",
    "set-cookie",
    "cookie2",
    "set-cookie2",
}
_ROUTING: Final = {
    "forwarded",
    "via",
    "x-real-ip",
    "client-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "cf-connecting-ip",
    "x-original-url",
    "x-original-host",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-host",
}
_PREFIXES: Final = ("proxy-", "x-forwarded", "sec-")


def is_header_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_key_header(name: str) -> bool:
    """Whether a header, or a cookie, of this name may carry a key.

    >>> [is_key_header(name) for name in ("Authorization", "X-API-Key", "Content-Length", "a b")]
    [True, True, False, False]
    """
    return is_header_name(name) and (name.lower() == "authorization" or not is_reserved(name))


def is_reserved(name: str) -> bool:
    """Whether the agent may not set it.

    >>> [is_reserved(name) for name in ("Host", "X-Forwarded-For", "x_forwarded_for", "X-Trace")]
    [True, True, True, False]
    """
    plain = name.lower().replace("_", "-")  # many servers take the one for the other
    return plain in _IGNORED or plain in _FRAMING or plain in _ROUTING or plain.startswith(_PREFIXES)
