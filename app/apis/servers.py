"""Which servers the calls of an API can reach, whatever tasks give for the variables of its addresses."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, product
from typing import NamedTuple, Self

import msgspec

from app.apis.address import VARIABLE, end_of_host, is_free, origin, service
from app.apis.catalog import App
from app.base.errors import InvalidError
from app.projects.settings import StagingApi

_ANY = "any-value-of-a-task"  # part of a host
_FORMS = 10_000  # of the addresses of one app


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
    template = address[: end_of_host(address)] or address

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
        raise InvalidError(
            f"{field} is at a server that tasks call, {found[0]}: trials would change what is live. In the "
            f"project's settings, name one with another host or port{_or_fix_the_server(found[0])}"
        )


def _or_fix_the_server(address: str) -> str:
    """What else can be done where tasks may give any value for a part of the host."""
    if "{" not in address[: end_of_host(address)]:
        return ""
    return "; or if all tasks call one server, put the API again with it as `server`"


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
            end = end_of_host(address) or len(address)
            for host in _hosts(servers, address[:end], room):
                room -= 1
                with suppress(ValueError):  # no call can be sent there
                    found._add(service(host), address if _ANY in host else f"{host}{address[end:]}")
        return found

    def at(self, url: str) -> str | None:
        sought = service(url)
        free = (address for pattern, address in self.free if pattern.fullmatch(sought))
        return self.known.get(sought) or next(free, None)

    def _add(self, host: str, address: str) -> None:
        if _ANY in host:
            self.free.append((re.compile(re.escape(host).replace(re.escape(_ANY), "[^:]+")), address))
        else:
            self.known.setdefault(host, address)


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
    free = all(is_free(template, each) for each in VARIABLE.finditer(template) if each[1] == name)
    return [_ANY] if free else default
