"""Which servers the calls of an API can reach, whatever tasks give for the variables of its addresses."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice, product

from app.apis.address import VARIABLE, end_of_host, is_free, service
from app.apis.catalog import App

_ANY = "any-value-of-a-task"  # part of a host
_FORMS = 10_000  # of one address


def reaches(app: App, url: str) -> str | None:
    """The address of `app` that can be at the host and port of `url`, or None.

    Raises ValueError for a `url` that is none, and for an address with too many forms to compare them.
    """
    sought = service(url)
    for server in sorted({app.server, *(each.server for each in app.operations.values() if each.server)}):
        end = end_of_host(server) or len(server)
        for host in _hosts(app, server[:end]):
            if _matches(host, sought):
                return server if _ANY in host else f"{host}{server[end:]}"
    return None


def _matches(host: str, sought: str) -> bool:
    try:
        pattern = re.escape(service(host)).replace(re.escape(_ANY), "[^:]+")
    except ValueError:  # no call can be sent there
        return False
    return re.fullmatch(pattern, sought) is not None


def _hosts(app: App, template: str) -> Iterator[str]:
    """The template with each of the values that tasks may choose, and with `_ANY` where they may give any."""
    names = list(dict.fromkeys(each[1] for each in VARIABLE.finditer(template)))
    chosen = list(islice(product(*(_values(app, template, name) for name in names)), _FORMS + 1))
    if len(chosen) > _FORMS:
        raise ValueError(
            f"{app.name} has too many addresses {template} to tell whether this is one of them: put the API again "
            "with the one that tasks call as `server`"
        )
    for each in chosen:
        yield _filled(template, dict(zip(names, each, strict=True)))


def _filled(template: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda variable: values[variable[1]], template)


def _values(app: App, template: str, name: str) -> list[str]:
    """Those that `address` permits. None for a variable that must be given, and for which nothing is permitted."""
    default = [app.variables[name]] if name in app.variables else []
    if name in app.choices:
        return sorted({*default, *app.choices[name]})
    free = all(is_free(template, each) for each in VARIABLE.finditer(template) if each[1] == name)
    return [_ANY] if free else default
