"""What every command that talks to a running server takes."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def server_options(command: F) -> F:
    """--url and --key."""
    key = click.option("--key", envvar="KEY", required=True, help="an admin key  [env KEY]")
    url = click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="the server")
    return key(url(command))


def project_option(command: F) -> F:
    return click.option("--project", help="by default the only one the key is good for")(command)
