"""Where a call goes: a server's URL with its variables filled in."""

import re
from collections.abc import Mapping

from app.apis.catalog import App

_VARIABLE = re.compile(r"\{([^{}]+)\}")
_HARMLESS = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")  # cannot turn one address into another
_HOST = re.compile(r"[^/]*//[^/]*")  # of a URL, with its scheme
_DOMAIN = re.compile(r"(\.[A-Za-z0-9-]+){2,}(:(\d+|\{\w+\}))?")  # what stays the document's


def address(app: App, server: str, given: Mapping[str, str]) -> str:
    """`server` with the values that are given, else with the document's defaults.

    The API's token goes there, so whoever gives a value must not choose the host: before the path it is one of the
    document's `enum`, or names a subdomain. Raises ValueError.
    """
    found = _HOST.match(server)
    host_end = found.end() if found else 0

    def fill(found: re.Match[str]) -> str:
        name, default = found[1], app.variables.get(found[1])
        value = given.get(name, default)
        if value is None:
            raise ValueError(f"the address of {app.name} needs {name!r}, which the task does not give")
        if value == default:
            return value
        if name in app.choices:
            if value not in app.choices[name]:
                raise ValueError(f"the task's {name!r} is none of {', '.join(app.choices[name])}")
            return value
        chooses_host = found.end() <= host_end and not _DOMAIN.fullmatch(server[found.end() : host_end])
        if chooses_host or not _HARMLESS.fullmatch(value):
            raise ValueError(f"the task's {name!r} cannot be part of the address of {app.name}")
        return value

    return _VARIABLE.sub(fill, server).rstrip("/")
