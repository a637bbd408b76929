"""Which servers the calls of an API can reach, whatever tasks give for the variables of its addresses."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Self

import msgspec

from app.apis.address import VARIABLE, end_of_host, is_free, service
from app.apis.catalog import App
from app.errors import InvalidError
from app.project.staging import StagingApi

_ANY = "any-value-of-a-task"  # part of a host
_FORMS = 10_000  # of one address


class Servers(msgspec.Struct, frozen=True):
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


def refuse_production(staging: Mapping[str, StagingApi], production: Collection[Servers]) -> None:
    """Raises InvalidError that names the field for a staging server that tasks call, or could call."""
    for name, each in staging.items():
        _refuse(f"staging.{name}.server", each.server, production)
        if each.reset_url is not None:
            _refuse(f"staging.{name}.reset_url", each.reset_url, production)


def _refuse(field: str, url: str, production: Iterable[Servers]) -> None:
    try:
        found = [same for each in production if (same := reaches(each, url)) is not None]
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


def reaches(servers: Servers, url: str) -> str | None:
    """The address that can be at the host and port of `url`, or None.

    Raises ValueError for a `url` that is none, and for an address with too many forms to compare them.
    """
    sought = service(url)
    for server in servers.addresses:
        end = end_of_host(server) or len(server)
        for host in _hosts(servers, server[:end]):
            if _matches(host, sought):
                return server if _ANY in host else f"{host}{server[end:]}"
    return None


def _matches(host: str, sought: str) -> bool:
    try:
        pattern = re.escape(service(host)).replace(re.escape(_ANY), "[^:]+")
    except ValueError:  # no call can be sent there
        return False
    return re.fullmatch(pattern, sought) is not None


def _hosts(servers: Servers, template: str) -> Iterator[str]:
    """The template with each of the values that tasks may choose, and with `_ANY` where they may give any."""
    names = list(dict.fromkeys(each[1] for each in VARIABLE.finditer(template)))
    chosen = list(islice(product(*(_values(servers, template, name) for name in names)), _FORMS + 1))
    if len(chosen) > _FORMS:
        raise ValueError(
            f"{servers.app} has too many addresses {template} to tell whether this is one of them: put the API "
            "again with the one that tasks call as `server`"
        )
    for each in chosen:
        yield _filled(template, dict(zip(names, each, strict=True)))


def _filled(template: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda variable: values[variable[1]], template)


def _values(servers: Servers, template: str, name: str) -> list[str]:
    """Those that `address` permits. None for a variable that must be given, and for which nothing is permitted."""
    default = [servers.variables[name]] if name in servers.variables else []
    if name in servers.choices:
        return sorted({*default, *servers.choices[name]})
    free = all(is_free(template, each) for each in VARIABLE.finditer(template) if each[1] == name)
    return [_ANY] if free else default
