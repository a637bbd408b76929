"""The URL of a server with its variables filled in."""

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from types import MappingProxyType
from urllib.parse import urlsplit

import httpx

from app.apis.catalog import App
from app.base.errors import ApiDocumentError
from app.base.values import Json

VARIABLE = re.compile(r"\{([^{}]+)\}")
_SCHEME_VARIABLE = re.compile(r"^\{\w+\}(?=://)")
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
    >>> service("http://0.0.0.0"), service("http://[::ffff:127.0.0.1]"), service("http://[::ffff:192.0.2.1]:81")
    ('localhost', 'localhost', '192.0.2.1:81')
    """
    host, _, port = origin(url).partition("://")[2].rpartition(":")
    with suppress(ValueError):  # it is a name
        found = ip_address(host.strip("[]"))
        mapped = getattr(found, "ipv4_mapped", None)
        local = (mapped or found).is_loopback or found.is_unspecified
        host = "localhost" if local else str(mapped or host)
    return host if port in ("80", "443") else f"{host}:{port}"


def with_defaults(url: str, variables: Json, shared: Mapping[str, str] = MappingProxyType({})) -> str:
    """The URL of a server with the defaults of its own variables, but for those that `shared` has as well.

    >>> with_defaults("https://{region}.test/{v}", {"region": {"default": "eu"}, "v": {"default": 2}}, {"v": "2"})
    'https://eu.test/{v}'
    """

    def fill(variable: re.Match[str]) -> str:
        declared = variables.get(variable[1])
        if not isinstance(declared, Mapping) or "default" not in declared:
            return variable[0]
        default = str(declared["default"])
        return variable[0] if default == shared.get(variable[1]) else default

    return VARIABLE.sub(fill, url) if isinstance(variables, Mapping) else url


def has_name(url: str) -> bool:
    """Whether a URL has a name or a password in it. False for what is no URL.

    >>> has_name("https://ann@mail.test"), has_name("https://mail.test/@ann"), has_name("http://[broken")
    (True, False, False)
    """
    try:
        return bool(httpx.URL(url).userinfo)
    except httpx.InvalidURL:
        return False


def check_reachable(server: str) -> None:
    """Raises ApiDocumentError for the address of a server that no client can call, whatever its variables are."""
    filled = VARIABLE.sub("1", _SCHEME_VARIABLE.sub("http", server))
    try:
        parts = urlsplit(filled)
        httpx.URL(filled)  # as the client that sends a call will read it
        if parts.port == 0 or re.search(r"\s", parts.hostname or ""):
            raise ApiDocumentError(f"servers: no server has the host and port of {server!r}")
    except (ValueError, httpx.InvalidURL) as error:
        raise ApiDocumentError(f"servers: {server!r} is not an address: {error}") from error


def same_origin(url: str, other: str) -> bool:
    """Whether both are URLs of one origin.

    >>> same_origin("https://mail.test:443/v1", "https://mail.test"), same_origin("http://mail.test", "no URL")
    (True, False)
    """
    try:
        return origin(url) == origin(other)
    except ValueError:
        return False


def end_of_host(server: str) -> int:
    """Where the host of an address ends, and its path begins. 0 if it has no host."""
    host = _HOST.match(server)
    return host.end() if host else 0


def is_free(server: str, variable: re.Match[str]) -> bool:
    """Whether a task may give any value: the variable names a subdomain, or is behind the host."""
    host_end = end_of_host(server)
    return variable.end() > host_end or _DOMAIN.fullmatch(server[variable.end() : host_end]) is not None


def address(app: App, server: str, given: Mapping[str, str]) -> str:
    """`server` with the given values, or the document's defaults.

    The API's token is sent there, so a given value must not choose the host: before the path it must be in the
    document's `enum`, or name a subdomain. Raises ValueError.
    """

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
        if not is_free(server, variable) or not _SAFE.fullmatch(value):
            raise ValueError(f"the task's {name!r} cannot be part of the address of {app.name}")
        return value

    return VARIABLE.sub(fill, server).rstrip("/")
