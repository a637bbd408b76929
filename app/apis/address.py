"""The URL of a server with its variables filled in."""

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

import httpx

from app.apis.catalog import App

_VARIABLE = re.compile(r"\{([^{}]+)\}")
_SAFE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")  # cannot change the rest of the URL
_HOST = re.compile(r"[^/]*//[^/]*")  # of a URL, with the scheme
_DOMAIN = re.compile(r"(\.[A-Za-z0-9-]+){2,}(:(\d+|\{\w+\}))?")  # the part of the host that the document fixes


def origin(url: str) -> str:
    """Scheme, host and port of a URL: what may share its credentials. Raises ValueError if it is none.

    >>> origin("https://Mail.test/v1"), origin("http://mail.test:8080")
    ('https://mail.test:443', 'http://mail.test:8080')
    """
    try:
        parts = httpx.URL(url)  # as the client that sends the call reads it
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address: {error}") from error
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host.rstrip('.')}:{parts.port or {'http': 80, 'https': 443}.get(parts.scheme, 0)}"


def service(url: str) -> str:
    """Host and port of a URL, where the default ports count as one: most servers answer alike on both.

    So do the names of this machine. Raises ValueError if it is none.

    >>> service("https://Mail.test/v1") == service("http://mail.test"), service("http://mail.test:8080")
    (True, 'mail.test:8080')
    >>> service("http://localhost:8080") == service("http://127.0.0.1:8080") == service("http://[::1]:8080")
    True
    """
    host, _, port = origin(url).partition("://")[2].rpartition(":")
    with suppress(ValueError):  # it is a name
        host = "localhost" if ip_address(host.strip("[]")).is_loopback else host
    return host if port in ("80", "443") else f"{host}:{port}"


def has_name(url: str) -> bool:
    """Whether a URL has a name or a password in it. False for what is no URL.

    >>> has_name("https://ann@mail.test"), has_name("https://mail.test/@ann"), has_name("http://[broken")
    (True, False, False)
    """
    try:
        return bool(httpx.URL(url).userinfo)
    except httpx.InvalidURL:
        return False


def same_origin(url: str, other: str) -> bool:
    """Whether both are URLs of one origin.

    >>> same_origin("https://mail.test:443/v1", "https://mail.test"), same_origin("http://mail.test", "no URL")
    (True, False)
    """
    try:
        return origin(url) == origin(other)
    except ValueError:
        return False


def address(app: App, server: str, given: Mapping[str, str]) -> str:
    """`server` with the given values, or the document's defaults.

    The API's token is sent there, so a given value must not choose the host: before the path it must be in the
    document's `enum`, or name a subdomain. Raises ValueError.
    """
    host = _HOST.match(server)
    host_end = host.end() if host else 0

    def fill(variable: re.Match[str]) -> str:
        name, default = variable[1], app.variables.get(variable[1])
        value = given.get(name, default)
        if value is None:
            raise ValueError(f"the address of {app.name} needs {name!r}, which the task does not give")
        if value == default:
            return value
        if name in app.choices:
            if value not in app.choices[name]:
                raise ValueError(f"the task's {name!r} is none of {', '.join(app.choices[name])}")
            return value
        chooses_host = variable.end() <= host_end and not _DOMAIN.fullmatch(server[variable.end() : host_end])
        if chooses_host or not _SAFE.fullmatch(value):
            raise ValueError(f"the task's {name!r} cannot be part of the address of {app.name}")
        return value

    return _VARIABLE.sub(fill, server).rstrip("/")
