"""Fields of credentials on a command line, which has only the place of a secret: others can read its arguments."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from app.base.errors import WrongUsageError
from app.client.options import text_of_file, text_of_stdin

SECRET_FIELDS = ("value", "password", "client_secret", "access_token", "refresh_token")
OPEN_FIELDS = (
    *("username", "certificate", "client_id", "scopes", "grant", "client_auth", "client_scopes"),
    *("authorization_url", "token_url", "resource", "issuer", "place", "name", "prefix"),
)
SOURCES = "env:VARIABLE, file:PATH, - for standard input, or prompt"


def read_fields(given: Iterable[str]) -> dict[str, Any]:
    """A credential of `FIELD=SOURCE` texts. Raises BadParameter, WrongUsageError for what is not set."""
    return dict(_read_field(*each.partition("=")[::2]) for each in given)


def read_credentials(given: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Credentials by scheme, of `SCHEME.FIELD=SOURCE` texts. Raises BadParameter, WrongUsageError."""
    found: dict[str, dict[str, Any]] = {}
    for each in given:
        place, _, source = each.partition("=")
        scheme, _, field = place.rpartition(".")
        if not scheme:
            raise click.BadParameter(f"{place!r} names no scheme: write SCHEME.FIELD=SOURCE")
        name, value = _read_field(field, source)
        found.setdefault(scheme, {})[name] = value
    return found


def read_secret(field: str, source: str) -> str:
    """The secret at a place. Raises BadParameter, WrongUsageError."""
    text = _read_source(field, source, secret=True)
    if text is None:
        raise click.BadParameter(
            f"{field}: a secret is no argument, which others on this machine can read. Say where it is: {SOURCES}"
        )
    return text


def ask_fields(fields: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Ask on the terminal, hiding what is secret. Raises UsageError without a terminal."""
    asked = {field: _ask(field, secret=field in SECRET_FIELDS) for field in fields}
    for field in optional:
        text = _ask(f"{field} (empty if there is none)", secret=field in SECRET_FIELDS, default="")
        asked |= {field: text} if text else {}
    return asked


def _read_field(field: str, source: str) -> tuple[str, Any]:
    if field in SECRET_FIELDS:
        return field, read_secret(field, source)
    if field not in OPEN_FIELDS:
        known = ", ".join((*SECRET_FIELDS, *OPEN_FIELDS))
        raise click.BadParameter(f"{field!r} is no field: write one of {known}")
    text = _read_source(field, source, secret=False)
    if text is None:
        text = source
    return field, text.replace(",", " ").split() if field.endswith("scopes") else text


def _read_source(field: str, source: str, *, secret: bool) -> str | None:
    """None if it is the text itself."""
    kind, _, place = source.partition(":")
    if source == "prompt":
        return _ask(field, secret=secret)
    if source == "-":
        return _line(text_of_stdin(field), "standard input")
    if kind == "env":
        return _variable(place)
    if kind == "file":
        return _line(text_of_file(place, field), place)
    return None


def _variable(name: str) -> str:
    if not os.environ.get(name):
        raise WrongUsageError(f"the environment variable {name} is not set: put the secret there")
    return os.environ[name]


def _line(text: str, place: str) -> str:
    """Without the end of the line, which editors and `echo` add."""
    if not (line := text.rstrip("\r\n")):
        raise WrongUsageError(f"{place} is empty: put the secret there")
    return line


def _ask(text: str, *, secret: bool, default: str | None = None) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{text} cannot be asked for without a terminal: say where it is, by {SOURCES}")
    answer: str = click.prompt(text, hide_input=secret, default=default, show_default=False, err=True)
    return answer
