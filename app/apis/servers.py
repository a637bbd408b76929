"""The servers of an API: their URLs with variables filled in, and which of them its calls can reach.

What is reachable holds whatever tasks give for the variables of an address.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice, product
from types import MappingProxyType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from app.apis.catalog import App
from app.base.errors import ApiDocumentError, InvalidError
from app.base.values import Json
from app.projects.settings import StagingApi

VARIABLE = re.compile(r"\{([^{}]+)\}")
_SCHEME_VARIABLE = re.compile(r"^\{\w+\}(?=://)")
_SAFE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")  # cannot change the rest of the URL
_HOST = re.compile(r"[^/]*//[^/]*")  # of a URL, with the scheme
_DOMAIN = re.compile(r"(\.[A-Za-z0-9-]+){2,}(:(\d+|\{\w+\}))?")  # the part of the host that the document fixes
_ANY = "any-value-of-a-task"  # part of a host
_FORMS = 10_000  # of the addresses of one app


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


def _end_of_host(server: str) -> int:
    """Where the host of an address ends, and its path begins. 0 if it has no host."""
    host = _HOST.match(server)
    return host.end() if host else 0


def _is_free(server: str, variable: re.Match[str]) -> bool:
    """Whether a task may give any value: the variable names a subdomain, or is behind the host."""
    host_end = _end_of_host(server)
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
        if not _is_free(server, variable) or not _SAFE.fullmatch(value):
            raise ValueError(f"the task's {name!r} cannot be part of the address of {app.name}")
        return value

    return VARIABLE.sub(fill, server).rstrip("/")


class CalledServers(msgspec.Struct, frozen=True):
    """Those that the calls of an app may go to."""

    app: str
    addresses: tuple[str, ...]  # with {variables}
    variables: dict[str, str]  # defaults
    choices: dict[str, tuple[str, ...]]  # permitted values

    @classmethod
    def of(cls, app: App) -> Self:
        """Also those of single operations."""
        addresses = {app.server, *(each.server for each in app.operations.values() if each.server)}
        return cls(app.name, tuple(sorted(addresses)), app.variables, app.choices)


def server_of(servers: CalledServers, address: str) -> str:
    """The origin of an address, with all that tasks may choose in it: what its secrets are given for.

    >>> server_of(CalledServers("mail", (), {}, {}), "https://Mail.test/v1")
    'https://mail.test:443'
    >>> server_of(CalledServers("mail", (), {"at": "eu"}, {"at": ("eu", "us")}), "https://{at}.mail.test/v1")
    'https://{eu|us}.mail.test'
    """
    template = address[: _end_of_host(address)] or address

    def values(variable: re.Match[str]) -> str:
        known = _values(servers, template, variable[1])
        return known[0] if len(known) == 1 and known != [_ANY] else f"{{{'|'.join(known)}}}"

    filled = VARIABLE.sub(values, template)
    try:
        return filled if "{" in filled else origin(filled)
    except ValueError:
        return filled


def refuse_production(staging: Mapping[str, StagingApi], production: Iterable[CalledServers]) -> None:
    """Raises InvalidError that names the field for a staging server that tasks call, or could call.

    With many forms of addresses it takes a second: await it in a thread.
    """
    try:
        called = [_Called.of(servers) for servers in production]
    except ValueError as error:
        raise InvalidError(f"staging: {error}") from error
    for name, each in staging.items():
        for field, url in (("server", each.server), ("reset_url", each.reset_url)):
            if url is not None:
                _refuse(f"staging.{name}.{field}", url, called)


def _refuse(field: str, url: str, called: Iterable["_Called"]) -> None:
    try:
        found = [address for each in called if (address := each.at(url)) is not None]
    except ValueError as error:
        raise InvalidError(f"{field}: {error}") from error
    if found:
        is_chosen = "{" in found[0][: _end_of_host(found[0])]  # tasks may give any value for a part of the host
        other = "; or if all tasks call one server, put the API again with it as `server`" if is_chosen else ""
        raise InvalidError(
            f"{field} is at a server that tasks call, {found[0]}: trials would change what is live. In the "
            f"project's settings, name one with another host or port{other}"
        )


def reaches(servers: CalledServers, url: str) -> str | None:
    """The address that can be at the host and port of `url`, or None.

    Raises ValueError for a `url` that is none, and for addresses with too many forms to compare them.
    """
    return _Called.of(servers).at(url)


class _Called(NamedTuple):
    """The addresses of an app by their host and port, in all forms."""

    known: dict[str, str]
    free: list[tuple[re.Pattern[str], str]]  # where a task may give any value

    @classmethod
    def of(cls, servers: CalledServers) -> Self:
        """Raises ValueError for more than `_FORMS` forms."""
        found = cls({}, [])
        room = _FORMS
        for address in servers.addresses:
            end = _end_of_host(address) or len(address)
            for host in _hosts(servers, address[:end], room):
                room -= 1
                with suppress(ValueError):  # no call can be sent there
                    place = service(host)
                    if _ANY in host:
                        pattern = re.escape(place).replace(re.escape(_ANY), "[^:]+")
                        found.free.append((re.compile(pattern), address))
                    else:
                        found.known.setdefault(place, f"{host}{address[end:]}")
        return found

    def at(self, url: str) -> str | None:
        sought = service(url)
        free = (address for pattern, address in self.free if pattern.fullmatch(sought))
        return self.known.get(sought) or next(free, None)


def _hosts(servers: CalledServers, template: str, most: int) -> Iterator[str]:
    """The template with each of the values that tasks may choose, and with `_ANY` where they may give any."""
    names = list(dict.fromkeys(each[1] for each in VARIABLE.finditer(template)))
    chosen = list(islice(product(*(_values(servers, template, name) for name in names)), most + 1))
    if len(chosen) > most:
        raise ValueError(
            f"{servers.app} has too many addresses, as {template}, to tell whether a staging server is one of "
            "them: put the API again with the one that tasks call as `server`"
        )
    for each in chosen:
        yield _filled(template, dict(zip(names, each, strict=True)))


def _filled(template: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda variable: values[variable[1]], template)


def _values(servers: CalledServers, template: str, name: str) -> list[str]:
    """Those that `address` permits. None for a variable that must be given, and for which nothing is permitted."""
    default = [servers.variables[name]] if name in servers.variables else []
    if name in servers.choices:
        return sorted({*default, *servers.choices[name]})
    free = all(_is_free(template, each) for each in VARIABLE.finditer(template) if each[1] == name)
    return [_ANY] if free else default
