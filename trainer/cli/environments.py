"""`sage environments`."""

import json
from typing import Any

import click

from trainer.cli.options import server_options
from trainer.cli.tables import columns

_HEAD = ("environment", "version", "options and their defaults")


@click.command()
@server_options
def environments(url: str, key: str) -> None:
    """List the environments that the server's workers have installed."""
    from trainer.client import SageClient  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for

    with SageClient(url, key) as server:
        found = server.request("GET", "/v1/environments")
    if not found:
        click.echo("no worker has reported its environments yet: is one running?", err=True)
        return
    click.echo(columns([_HEAD, *((each["name"], each["version"], _options(each["options"])) for each in found)]))


def _options(schema: dict[str, Any]) -> str:
    """
    >>> _options({"properties": {"site": {"default": None}, "city": {}}})
    'city (required) site=null'
    """
    return " ".join(
        f"{name}={json.dumps(option['default'])}" if "default" in option else f"{name} (required)"
        for name, option in sorted(schema["properties"].items())
    )
