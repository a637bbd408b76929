"""`sage environments`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from app.client.options import server_command
from app.client.words import Listing

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


@click.command()
@server_command
def environments(session: "ServerSession") -> None:
    """List the environments that the server's workers have installed."""
    session.show_list("/v1/environments", _LISTING)


def _options(schema: Mapping[str, Any]) -> str:
    """
    >>> _options({"properties": {"site": {"default": None}, "city": {}}})
    'city (required) site=null'
    """
    return " ".join(
        f"{name}={json.dumps(option['default'])}" if "default" in option else f"{name} (required)"
        for name, option in sorted(schema["properties"].items())
    )


_LISTING = Listing(
    ("environment", "version", "options and their defaults"),
    lambda each: (each["name"], each["version"], _options(each["options"])),
    empty="no worker has reported its environments yet: is one running?",
)
