"""Options of all commands that use a running server."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from app.ports import base_url
from app.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


def server_options(command: F) -> F:
    """--url and --key."""
    key = click.option("--key", envvar="KEY", required=True, help="an admin key  [env KEY]")
    return key(url_option(command))


def url_option(command: F) -> F:
    return click.option(
        "--url",
        envvar="SAGE_URL",
        default=_here,
        show_default="the one at SAGE_HOST and SAGE_PORT",
        help="the server  [env SAGE_URL]",
    )(command)


def _here() -> str:
    """The address of a server with these settings."""
    settings = Settings.from_env()
    return base_url(settings.host, settings.port)


def project_option(command: F) -> F:
    return click.option("--project", help="default: the only one that the key can access")(command)
