"""What an API asks its callers for, and the commands that give it."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import click

from app.base.text import visible
from app.client.credential_fields import SECRET_FIELDS

STATIC_TOKEN = "bearer_token"
OAUTH_KINDS = ("oauth2", "openid")

_STATES = {
    "missing": "is missing",
    "not_authorized": "waits for a person's consent",
    "insufficient_scope": "needs a person's consent to more scopes",
    "failing": "fails",
}


def states(credentials: list[Mapping[str, Any]]) -> dict[str, str]:
    """By scheme."""
    return {each["scheme"]: each["state"] for each in credentials}


def show_missing(api: Mapping[str, Any], project: str | None) -> None:
    """Say on standard error which credentials are missing or fail, and with which commands to give them."""
    wrong = [each for each in api["credentials"] if each["state"] != "ready"]
    if wrong:
        click.echo(f"\n{api['name']} asks for credentials. Calls go out without those that are missing:", err=True)
    for each in wrong:
        click.echo(f"  {_about(each)}", err=True)
        for command in commands(api["name"], each, project):
            click.echo(f"    {command}", err=True)


def commands(name: str, credential: Mapping[str, Any], project: str | None) -> Iterator[str]:
    """The commands that give a credential, one for each way."""
    start = ["sage", "apis", "connect", name, credential["scheme"]]
    end = [] if project is None else ["--project", project]
    if credential["state"] in ("not_authorized", "insufficient_scope"):
        yield shlex.join([*start, *end])
        return
    for way in credential["ways"]:
        fields = [_placeholder(each) for each in way["fields"]]
        yield shlex.join([*start, *fields, *end])


def _about(credential: Mapping[str, Any]) -> str:
    reason = " ".join(credential["wanted_scopes"]) or credential["failure"] or credential["description"]
    text = f"{credential['scheme']} ({credential['kind']}) {_STATES[credential['state']]}"
    return visible(f"{text}: {reason.splitlines()[0]}" if reason else text)


def _placeholder(field: str) -> str:
    return f"{field}=env:{field.upper()}" if field in SECRET_FIELDS else f"{field}={field.upper()}"
