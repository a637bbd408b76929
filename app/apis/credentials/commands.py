"""`sage apis connect`, `credentials` and `disconnect`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from app.client.credential_fields import ask_fields, read_fields
from app.client.missing_credentials import OAUTH_KINDS, STATIC_TOKEN, commands
from app.client.options import project_option, server_command
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

_LISTING = listing_of("scheme", "principal", "kind", "state", "used_at", "failure")
_UNKNOWN: Mapping[str, Any] = {"kind": "", "state": "missing", "ways": []}


def principal_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--principal", default="", help="whose  [default: those for all tasks]")(command)


@click.command("credentials")
@server_command
@click.argument("name")
@project_option
def list_credentials(session: "ServerSession", name: str, project: str | None) -> None:
    """List the stored credentials of an API, those of principals too. `sage apis show` tells what is missing."""
    session.show_list(f"/v1/apis/{name}/credentials", _LISTING, project=project)


@click.command("disconnect")
@server_command
@click.argument("name")
@click.argument("scheme")
@project_option
@principal_option
def disconnect_api(session: "ServerSession", name: str, scheme: str, project: str | None, principal: str) -> None:
    """Delete the credentials of an API for one SCHEME, or its bearer_token."""
    path, whose = f"/v1/apis/{name}", {"project": project, "principal": principal or None}
    if scheme == STATIC_TOKEN:
        gone = session.server.request("PATCH", path, {STATIC_TOKEN: None}, project=project)
    else:
        gone = session.server.request("DELETE", f"{path}/credentials/{quote(scheme, safe='')}", **whose)
    session.confirm(gone, f"deleted the credentials {scheme} of {name}")


@click.command("connect")
@server_command
@click.argument("name")
@click.argument("given", nargs=-1, metavar="[SCHEME] [FIELD=SOURCE]...")
@project_option
@principal_option
@click.option("--browser/--no-browser", default=None, help="whether to open the address  [default: on a desktop]")
@click.option("--no-wait", is_flag=True, help="print the address of a consent, and end")
def connect_api(
    session: "ServerSession",
    name: str,
    given: Sequence[str],
    project: str | None,
    principal: str,
    *,
    browser: bool | None,
    no_wait: bool,
) -> None:
    """Give an API the credentials of one security SCHEME, and wait for a person's consent where it is needed.

    A secret is no argument, but at a SOURCE: `value=env:VARIABLE`, `password=file:PATH`, `client_secret=-` for
    standard input, or `value=prompt`. Other fields are as they are: `username=iris`. Without any, you are asked.

    SCHEME may be left out if only one is missing. With `place=header name=X-Key`, it may be one that the document
    does not declare; `bearer_token` is a token for all calls. Exits with code 1 if there is no consent.
    """
    named = given[0] if given and "=" not in given[0] else None
    fields = read_fields(given if named is None else given[1:])
    connection = _Connection(session, name, project, principal, named)
    if not fields and not connection.can_consent:
        fields = connection.ask()
    if fields and not connection.store(fields):
        return
    # Imported here for the same reason as ServerSession.
    from app.client.wait_for_consent import open_address, wait_for_consent  # noqa: PLC0415

    before = connection.stored()
    consent = connection.authorize()
    open_address(consent, browser=browser)
    if no_wait:
        session.confirm(consent, consent["url"])
        return
    shown = wait_for_consent(connection.stored, before, consent)
    session.confirm(shown, f"{name} is connected by {connection.scheme}")


class _Connection:
    """An API, and the scheme whose credentials are given. Raises UsageError if it is not clear which."""

    def __init__(
        self, session: "ServerSession", name: str, project: str | None, principal: str, scheme: str | None
    ) -> None:
        self._session, self._name, self._project, self._principal = session, name, project, principal
        asked = session.server.request("GET", f"/v1/apis/{name}", project=project)["credentials"]
        self.scheme = scheme or _only(asked, principal)
        shared = next((each for each in asked if each["scheme"] == self.scheme), None)
        own = self.stored() if principal else None
        self._shown = own or shared or {**_UNKNOWN, "scheme": self.scheme}
        self._request = partial(session.server.request, project=project, principal=principal or None)

    @property
    def can_consent(self) -> bool:
        """Whether a person could consent at once, with the client that is stored, or one that registers itself."""
        alone = any(not way["fields"] for way in self._shown["ways"])
        return alone or (self._shown["kind"] in OAUTH_KINDS and self._shown["state"] != "missing")

    def stored(self) -> Mapping[str, Any] | None:
        """The credential as the server shows it now."""
        path = f"/v1/apis/{self._name}/credentials"
        listed = self._session.server.request("GET", path, project=self._project)
        wanted = (self.scheme, self._principal)
        return next((each for each in listed if (each["scheme"], each["principal"]) == wanted), None)

    def ask(self) -> dict[str, Any]:
        """The fields of one way, from the terminal. Raises UsageError, which has the commands, without one."""
        ways = self._shown["ways"]
        if self.scheme == STATIC_TOKEN and not ways:
            return ask_fields(["value"])
        if not ways:
            raise click.UsageError(
                f"the document declares no scheme {self.scheme}: give place=header name=NAME value=env:VARIABLE"
            )
        try:
            way = ways[0] if len(ways) == 1 else ways[_choice(ways)]
            return ask_fields(way["fields"], way["optional"])
        except click.UsageError as error:
            known = "\n  ".join(commands(self._name, self._shown, self._project))
            raise click.UsageError(f"{error.message}:\n  {known}") from error

    def store(self, fields: Mapping[str, Any]) -> bool:
        """Whether a person has to consent then. If not, says what was done."""
        if self.scheme == STATIC_TOKEN and not self._shown["ways"]:
            shown = self._store_token(fields)
        else:
            path = f"/v1/apis/{self._name}/credentials/{quote(self.scheme, safe='')}"
            shown = self._request("PUT", path, dict(fields))
            if shown["state"] == "not_authorized":
                return True
        self._session.confirm(shown, f"stored the credentials {self.scheme} of {self._name}")
        return False

    def authorize(self) -> Any:
        return self._request("GET", f"/v1/apis/{self._name}/authorize", scheme=self.scheme)

    def _store_token(self, fields: Mapping[str, Any]) -> Any:
        if fields.keys() != {"value"} or self._principal:
            raise click.UsageError(f"{STATIC_TOKEN} takes a `value` alone, and is for all tasks")
        body = {STATIC_TOKEN: fields["value"]}
        return self._session.server.request("PATCH", f"/v1/apis/{self._name}", body, project=self._project)


def _only(asked: Sequence[Mapping[str, Any]], principal: str) -> str:
    """The scheme that is meant, if none is named: the only one that is not ready, or else the only one."""
    wrong = [] if principal else [each for each in asked if each["state"] != "ready"]
    found = wrong or asked
    if len(found) > 1:
        found = [each for each in found if each["kind"] in OAUTH_KINDS]
    if len(found) != 1:
        known = ", ".join(each["scheme"] for each in asked) or f"{STATIC_TOKEN}, or any with place= and name="
        raise click.UsageError(f"name the scheme: {known}")
    return str(found[0]["scheme"])


def _choice(ways: Sequence[Mapping[str, Any]]) -> int:
    """Of several ways, as an index. Raises UsageError without a terminal."""
    texts = [" and ".join(way["fields"]) + (", and a person's consent" if way["consent"] else "") for way in ways]
    for number, text in enumerate(texts, 1):
        click.echo(f"{number}  {text}", err=True)
    given = ask_fields(["number"])["number"]
    if not given.isdecimal() or not 0 < int(given) <= len(ways):
        raise click.UsageError(f"{given!r} is none of 1 to {len(ways)}")
    return int(given) - 1
