"""`sage apis connect`, `credentials` and `disconnect`.

A command line has only the place of a secret: others can read its arguments.
"""

import shlex
import sys
import time
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from app.base.errors import WrongUsageError
from app.base.text import visible
from app.client.options import project_option, secret_in, server_command, text_of_file, text_of_stdin
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


SECRET_FIELDS = ("value", "password", "client_secret", "access_token", "refresh_token")
OPEN_FIELDS = (
    *("username", "certificate", "client_id", "scopes", "grant", "client_auth", "client_scopes"),
    *("authorization_url", "token_url", "resource", "issuer", "place", "name", "prefix"),
)
SOURCES = "env:VARIABLE, file:PATH, - for standard input, or prompt"
STATIC_TOKEN = "bearer_token"
OAUTH_KINDS = ("oauth2", "openid")
_STATES = {
    "missing": "is missing",
    "not_authorized": "waits for a person's consent",
    "insufficient_scope": "needs a person's consent to more scopes",
    "failing": "fails",
}
_PAUSE_SECONDS = 0.5  # between two looks whether a person has consented
Credential = Mapping[str, Any]
"""As the server shows it."""
_LISTING = listing_of("scheme", "principal", "kind", "state", "used_at", "failure")
_UNKNOWN: Mapping[str, Any] = {"kind": "", "state": "missing", "ways": []}


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
        return secret_in(place, "the secret")
    if kind == "file":
        return _line(text_of_file(place, field), place)
    return None


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


def open_address(consent: Mapping[str, Any], *, browser: bool | None) -> None:
    """Show the address on standard error, and open it in a browser: by default on a terminal, if one has a window.

    Raises ClickException for an address that no browser opens.
    """
    url = consent["url"]
    if not url.startswith(("https://", "http://")):
        raise click.ClickException(f"the document names no address that a browser could open: {visible(url)}")
    until = datetime.fromisoformat(consent["expires_at"]).astimezone()
    click.echo(f"open this address and consent, until {until:%H:%M:%S}:\n{visible(url)}", err=True)
    if browser or (browser is None and sys.stderr.isatty() and _has_window()):
        webbrowser.open(url)


def wait_for_consent(
    look: Callable[[], Credential | None], before: Credential | None, consent: Mapping[str, Any]
) -> Credential:
    """The credential that `look` shows once a person has consented.

    Raises ClickException if they refuse, if there is no token for them, or if the address is too old.
    """
    until = datetime.fromisoformat(consent["expires_at"])
    old = before or {}
    while True:
        now = look() or {}
        if now.get("connected_at") not in (None, old.get("connected_at")):
            return now
        by_a_task = now.get("failed_at") == now.get("used_at")
        if now.get("failed_at") not in (None, old.get("failed_at")) and not by_a_task:
            raise click.ClickException(f"not connected: {visible(now['failure'])}")
        if datetime.now(UTC) > until:
            raise click.ClickException("nobody has consented, and the address is too old now: ask for another one")
        time.sleep(_PAUSE_SECONDS)


def _has_window() -> bool:
    """Whether the default browser is none of those that take the terminal."""
    try:
        return type(webbrowser.get()) is not webbrowser.GenericBrowser
    except webbrowser.Error:
        return False


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
