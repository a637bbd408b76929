"""What commands that use a running server are given: its address and key, options that many have, and text in
files.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from app.base.errors import SettingError, WrongUsageError
from app.base.files import admin_key_file, data_dir_at, read_admin_key
from app.base.processes import base_url
from app.base.settings import Settings, are_http

_DEFAULT_PORTS = {"http": 80, "https": 443}
F = TypeVar("F", bound=Callable[..., Any])


class ListingGroup(click.Group):
    """Without a command it lists: `sage skills --state active` is `sage skills list --state active`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def text_of_file(path: str | Path, about: str) -> str:
    """Raises BadParameter, which names what it is `about`."""
    try:
        return _decoded(Path(path).read_bytes(), repr(str(path)), about)
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise click.BadParameter(f"{about}: {str(path)!r} cannot be read: {error}") from error


def text_of_stdin(about: str) -> str:
    """Raises BadParameter, which names what it is `about`."""
    return _decoded(sys.stdin.buffer.read(), "standard input", about)


def secret_in(variable: str, what: str) -> str:
    """Raises WrongUsageError, which names `what` to put there, if the environment lacks the variable."""
    if not (secret := os.environ.get(variable)):
        raise WrongUsageError(f"the environment variable {variable} is not set: put {what} there")
    return secret


def _decoded(content: bytes, name: str, about: str) -> str:
    """In any locale, and without the byte order mark that some editors put first."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"{about}: {name} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error


def server_command(command: Callable[..., None]) -> Callable[..., None]:
    """--url, --key and --json, for a command whose first argument is the open `ServerSession`."""

    @server_options
    @click.option("--json", "as_json", is_flag=True, help="print the server's answer as JSON")
    @wraps(command)
    def connected(*, url: str, key: str, as_json: bool, **options: Any) -> None:
        # Imported here because httpx and rich take a moment, which `sage --help` need not wait for.
        from app.client.terminal import ServerSession  # noqa: PLC0415

        with ServerSession(url, key, as_json=as_json) as session:
            command(session, **options)

    return connected


def server_options(command: F) -> F:
    """--url and --key. On the machine of the server, the first admin key is the default."""
    key = click.option(
        "--key",
        envvar=["SAGE_KEY", "KEY"],
        callback=_key,
        help="a key of the server  [env SAGE_KEY; default: the admin key of `sage up` on this machine]",
    )
    return url_option(key(command))


def url_option(command: F) -> F:
    return click.option(
        "--url",
        envvar="SAGE_URL",
        default=_here,
        show_default="the one at SAGE_HOST and SAGE_PORT",
        is_eager=True,  # the default of --key depends on it
        callback=_url,
        help="the server  [env SAGE_URL]",
    )(command)


def project_option(command: F) -> F:
    return click.option("--project", help="default: the only one that the key can access")(command)


def page_options(command: F) -> F:
    """--limit and --cursor, of listings."""
    limit = click.option(
        "--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="maximum number of rows"
    )
    return limit(click.option("--cursor", help="where the page before this one ended")(command))


def find_key(url: str, given: str | None) -> str | None:
    """The key that was given, or the admin key of the server on this machine, which is sent to no other one."""
    if given or not _is_here(url):
        return given
    return next(filter(None, map(read_admin_key, _data_dirs(url))), None)


def client_settings() -> Settings:
    """The settings of this machine. Raises WrongUsageError that names what is invalid."""
    try:
        return Settings.from_env()
    except SettingError as error:
        raise WrongUsageError(str(error)) from error


def _here() -> str:
    """The address of a server with these settings."""
    settings = client_settings()
    return base_url(settings.host, settings.port)


def _data_dirs(url: str) -> list[Path]:
    """Where the admin key of the server may be: as SAGE_DATA_DIR says, else where that server has noted it."""
    named = client_settings().data_dir
    noted = data_dir_at(urlsplit(url).port or _DEFAULT_PORTS[urlsplit(url).scheme])
    return [named] if noted is None or named != Settings().data_dir else [noted, named]


def _url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not are_http(value):
        raise click.BadParameter(f"{value!r} is no URL: it begins with http:// or https://", context, parameter)
    return value


def _key(context: click.Context, parameter: click.Parameter, value: str | None) -> str:  # noqa: ARG001
    """Raises UsageError if there is none."""
    if (key := find_key(context.params["url"], value)) is not None:
        return key
    file = admin_key_file(client_settings().data_dir)
    raise click.UsageError(
        f"no key: set SAGE_KEY to a key of {context.params['url']}, or SAGE_DATA_DIR to the data directory of the "
        f"`sage up` on this machine: there is no {file} that you may read",
        context,
    )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or url == _here():
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
