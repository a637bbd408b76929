"""`sage apis`, with the progress of a trial while somebody waits for it."""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from app.apis.credentials.commands import (
    STATIC_TOKEN,
    connect_api,
    disconnect_api,
    list_credentials,
    read_credentials,
    read_secret,
    show_missing,
    states,
)
from app.base.text import visible
from app.client.options import ListingGroup, project_option, server_command, text_of_file, text_of_stdin
from app.client.server import ServerError
from app.client.words import Listing, age, listing_of, readable_error

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


_SECONDS, _TO_BEGIN = 60.0, 10.0
_PAUSE_SECONDS = 0.5
_OPEN = ("waiting", "running")
_RESULTS = {True: "right", False: "wrong", None: "-"}
_WAITS = {
    "never": "no call waits for a person",
    "first": "an operation's first change waits for a person, until a task that made one was scored as a success",
    "write": "each change waits for a person",
    "always": "each call waits for a person",
    "document": "calls that its document marks as a risk wait for a person",
}
_MADE_OF = {"document": "the document alone", "read": "the document and the real API"}
_NO_SCHEME = re.compile(r"[\w.-]+:\d+(/|$)|(localhost|[\w-]+(\.[\w-]+)+)/")

_LISTING = Listing(
    ("name", "project", "has token", "trial", "age", "source"),
    lambda api: (
        api["name"],
        api["project"],
        "yes" if api["has_token"] else "no",
        _result(api["trial"]),
        age(api["created_at"]),
        api["source"],
    ),
)
_QUESTIONS = Listing(
    ("result", "right answer", "given", "question"),
    lambda each: (_RESULTS[each["correct"]], each["right"], _given(each), each["question"]),
    items="questions",
)
_STATES = listing_of("name", "method", "path", "hidden", "safe", "approval", "explore", "set", "gone")
_CHANGES = listing_of("created_at", "applied", "added", "removed", "changed", "eased")
_LEFT_OUT = listing_of("method", "path", "operation", "reason", items="left_out")
_OPERATIONS = listing_of("method", "path", "signature", items="operations")

Trial = Mapping[str, Any]
"""As the server shows it."""


@click.group(cls=ListingGroup)
def apis() -> None:
    """Add, list and show the APIs of a project, which its agent may call."""


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command about one API of a project."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        return apis.command(name)(server_command(click.argument("name")(project_option(command))))

    return decorate


@apis.command("list")
@server_command
@project_option
def list_apis(session: "ServerSession", project: str | None) -> None:
    """List the APIs of a project."""
    session.show_list("/v1/apis", _LISTING, project=project)


@_command("show")
def show_api(session: "ServerSession", name: str, project: str | None) -> None:
    """Show an API and its operations."""
    _show(session, session.server.request("GET", f"/v1/apis/{name}", project=project), project)


@_command("add")
@click.argument("document", required=False)
@click.option("--mcp", metavar="ADDRESS", help="an MCP server instead of a document: its URL, or stdio:NAME")
@click.option("--server", help="URL that overrides the server named in the document")
@click.option("--naming", type=click.Choice(["readable", "operation_id"]), help="names of the operations")
@click.option("--token", metavar="SOURCE", help="where a bearer token for all calls is")
@click.option(
    "--credential",
    "credentials",
    multiple=True,
    metavar="SCHEME.FIELD=SOURCE",
    help="a field of the credentials of a security scheme",
)
@click.option("--no-trial", is_flag=True, help="do not ask the model questions about it")
@click.option("--approve", type=click.Choice(tuple(_WAITS)), help="which of its calls wait for a person")
@click.option("--practice", type=click.Choice(tuple(_MADE_OF)), help="what practice on it is made of")
def add_api(
    session: "ServerSession",
    name: str,
    document: str | None,
    token: str | None,
    credentials: tuple[str, ...],
    *,
    no_trial: bool,
    approve: str | None,
    **place: Any,
) -> None:
    """Add or replace an API by its OpenAPI document: a URL, a file, or `-` for standard input; or an MCP server.

    A new one is tried at once: the server asks the model a few questions, which only read. On a terminal the
    command waits for that, for a minute at most. `sage apis trial` shows it later.

    The agent calls its operations as `apis.NAME.<operation>(...)`. A secret is no argument, but at a SOURCE:
    `env:VARIABLE`, `file:PATH`, `-` for standard input, or `prompt`. `sage apis connect` gives credentials later.
    """
    if (document is None) == (place["mcp"] is None):
        raise click.UsageError("give either a document or --mcp")
    given = {field: value for field, value in place.items() if value is not None}
    body = {"name": name, **given, **(_document(document) if document is not None else {})}
    if token is not None:
        body[STATIC_TOKEN] = read_secret("token", token)
    body["credentials"] = read_credentials(credentials)
    body |= {"trial": False} if no_trial else {}
    added = session.server.request("POST", "/v1/apis", body)
    _show(session, added, place["project"])
    approval = _approval_line(added, _approve(session, added, approve))
    if not session.as_json:
        click.echo(approval, err=True)
    if added["trial"]["state"] == "waiting":
        _wait(session, name, place["project"])


@_command("trial")
@click.option("--again", is_flag=True, help="ask the model again")
def show_trial(session: "ServerSession", name: str, project: str | None, *, again: bool) -> None:
    """Show what the model answered when it was asked about an API, and the right answers.

    The server makes the questions of what the API answers, and repeats them when the document, the weights, the
    prompt or the model changes. As JSON, it shows what the agent did, too.
    """
    path = f"/v1/apis/{name}/trial"
    if again:
        session.server.request("POST", path, project=project)
        _wait(session, name, project)
    trial = session.server.request("GET", path, project=project)
    tokens = sum(each["tokens"] for each in trial["questions"])
    fields = {"trial": _summary(trial, name)} | ({"tokens": tokens} if tokens else {})
    session.show(trial, lambda _: fields, table=_QUESTIONS)


@_command("approve")
@click.argument("mode", type=click.Choice(tuple(_WAITS)), required=False)
def approve_api(session: "ServerSession", name: str, mode: str | None, project: str | None) -> None:
    """Set which calls of an API wait for a person, or say it.

    None (`never`), the first change by each operation until a task that made one was scored as a success
    (`first`), each change (`write`), all (`always`), or those that the document marks (`document`).
    """
    api = session.server.request("GET", f"/v1/apis/{name}", project=project)
    changed = _approve(session, api, mode)
    session.confirm(changed, _approval_line(api, changed))


@_command("practice")
@click.argument("source", type=click.Choice(tuple(_MADE_OF)), required=False)
@click.option("--compare", is_flag=True, help="call what only reads, and say how that differs from the document")
def show_practice(
    session: "ServerSession", name: str, source: str | None, project: str | None, *, compare: bool
) -> None:
    """Show what can be practised on an API, and why the rest cannot be, or set what practice is made of.

    By its `document` alone, or also by what operations of the real API that only read answer (`read`): which
    fields there are and of which form, but nothing personal and no secret. They are called at once, to compare.
    """
    path = f"/v1/apis/{name}/practice"
    if source is not None:
        session.server.request("PATCH", f"/v1/apis/{name}", {"practice": source}, project=project)
    wanted = compare or source == "read"
    shown = session.server.request("POST" if wanted else "GET", path, project=project)
    session.show(shown, _practice_fields, table=_LEFT_OUT if shown["left_out"] else None)


@_command("test")
@click.option("--operation", default="", help="one that only reads  [default: one that needs no arguments]")
@click.option("--arguments", default="{}", metavar="JSON", help="of the operation")
@click.option("--principal", default="", help="the user on whose behalf it is called")
def test_api(session: "ServerSession", name: str, project: str | None, arguments: str, **call: Any) -> None:
    """Call one operation with the stored credentials, and show the answer. Exits with code 1 if it fails."""
    try:
        body = {**call, "arguments": json.loads(arguments)}
    except ValueError as error:
        raise click.BadParameter(f"{arguments!r} is not JSON: {error}", param_hint="--arguments") from error
    result = session.server.request("POST", f"/v1/apis/{name}/test", body, project=project)
    session.show(result)
    sys.exit(0 if result["ok"] else 1)


@_command("changes")
@click.option("--refresh", is_flag=True, help="fetch the document again first")
def show_changes(session: "ServerSession", name: str, project: str | None, refresh: bool) -> None:
    """List what has changed in an API's document, newest first."""
    if refresh:
        found = session.server.request("POST", f"/v1/apis/{name}/refresh", project=project)
        if found["failure"] is not None:
            click.echo(f"the document cannot be read: {readable_error(found['failure'])}", err=True)
    session.show_list(f"/v1/apis/{name}/changes", _CHANGES, project=project)


@_command("operations")
def list_operations(session: "ServerSession", name: str, project: str | None) -> None:
    """List the operations of an API, hidden ones too, and what is set for them."""
    session.show_list(f"/v1/apis/{name}/operations", _STATES, project=project)


@_command("operation")
@click.argument("operation")
@click.option("--rename", "name_", metavar="NAME", help="the name that the agent calls it by")
@click.option("--describe", "description", metavar="TEXT", help="what the agent reads about it")
@click.option("--hide/--show", "hidden", default=None, help="whether the agent cannot call it")
@click.option("--safe/--unsafe", default=None, help="whether it only reads")
@click.option(
    "--approval", type=click.Choice(["always", "write", "first", "never"]), help="which calls wait for a person"
)
@click.option("--explore/--no-explore", default=None, help="whether tasks that explore may change something by it")
@click.option("--reset", is_flag=True, help="undo what is set and not given here, so that the document decides")
def change_operation(
    session: "ServerSession", name: str, operation: str, project: str | None, *, reset: bool, **given: Any
) -> None:
    """Rename, describe, hide or mark one operation of an API, whatever its document says.

    Without an option, it is shown as it is.
    """
    given["name"] = given.pop("name_")
    body = {field: value for field, value in given.items() if reset or value is not None}
    path = f"/v1/apis/{name}/operations/{quote(operation, safe='')}"
    session.show(session.server.request("PATCH", path, body, project=project))


@_command("remove")
def remove_api(session: "ServerSession", name: str, project: str | None) -> None:
    """Remove an API and its token."""
    session.confirm(session.server.request("DELETE", f"/v1/apis/{name}", project=project), f"removed {name}")


def _wait(session: "ServerSession", name: str, project: str | None) -> None:
    """Tell on standard error, if that is a terminal, how the trial goes: to its end, or for a minute, or for ten
    seconds if it does not begin. Ctrl-C, or a server that does not answer, ends the wait alone.
    """
    command = shlex.join(["sage", "apis", "trial", name, *([] if project is None else ["--project", project])])
    if not sys.stderr.isatty():
        click.echo(f"the model is asked about it; see the trial with:  {command}", err=True)
        return
    began, told = time.monotonic(), ""
    try:
        while True:
            trial = session.server.request("GET", f"/v1/apis/{name}/trial", project=project)
            if (line := _line(trial, name)) != told:
                told = line
                click.echo(visible(line), err=True)
            if trial["state"] not in _OPEN:
                return
            begun = trial["state"] == "running" or trial["questions"]
            if time.monotonic() - began > (_SECONDS if begun else _TO_BEGIN):
                break
            time.sleep(_PAUSE_SECONDS)
    except KeyboardInterrupt:
        click.echo(err=True)
    except ServerError as error:
        click.echo(readable_error(str(error)), err=True)
    click.echo(f"the trial goes on; see it with:  {command}", err=True)


def _line(trial: Trial, api: str) -> str:
    answered = sum(each["correct"] is not None for each in trial["questions"])
    if trial["state"] in _OPEN and answered:
        return f"trial: {answered} of {trial['asked']} questions answered, {trial['right']} of them right"
    return f"trial: {_summary(trial, api)}"


def _given(tried: Mapping[str, Any]) -> str:
    if tried["given"] is None:
        return "-" if tried["stop"] is None else f"none ({tried['stop'].replace('_', ' ')})"
    return str(tried["given"])[:60]


def _summary(trial: Trial, api: str) -> str:
    """The trial of this API.

    >>> new = {"state": "waiting", "right": 0, "asked": 0, "reason": None, "remark": None, "release": None}
    >>> _summary(new, "desk"), _summary({**new, "state": "done", "right": 4, "asked": 5, "release": 2}, "desk")
    ('waiting', '4 of 5 right by release 2')
    >>> _summary({**new, "state": "done", "right": 4, "asked": 5, "release": 2, "outdated_by": 3}, "desk")
    '4 of 5 right by release 2, outdated: release 3 serves now, and is tried soon'
    >>> _summary({**new, "state": "not_tried", "reason": "its lists are empty"}, "desk")
    'not tried: its lists are empty (to try it again: sage apis trial desk --again)'
    """
    score = f"{trial['right']} of {trial['asked']} right"
    if trial.get("release") is not None:
        score += f" by release {trial['release']}"
    old = trial.get("outdated_by")
    text_of_done = score if old is None else f"{score}, outdated: release {old} serves now, and is tried soon"
    said = {"done": text_of_done, "running": f"running, {score} so far" if trial["asked"] else "running"}
    text = said.get(trial["state"], trial["state"].replace("_", " "))
    more = trial["remark"] or trial["reason"]
    if trial["state"] == "not_tried":
        more = f"{more} (to try it again: sage apis trial {api} --again)"
    return f"{text}: {more}" if more else str(text)


def _practice_fields(shown: Mapping[str, Any]) -> dict[str, Any]:
    found = f"{shown['practised']} of {shown['operations']} operations can be practised"
    fields: dict[str, Any] = {"practice": found if shown["state"] == "ready" else shown["reason"]}
    fields |= {"records": ", ".join(shown["collections"])} if shown["collections"] else {}
    fields["made of"] = _MADE_OF[shown["practice"]]
    if shown["compared_at"] is not None:
        compared = f"{age(shown['compared_at'])} ago, by {shown['calls']} calls"
        fields |= {"compared": compared, "differences": "\n".join(shown["differences"]) or "none"}
        fields |= {"not read": "\n".join(shown["skipped"])} if shown["skipped"] else {}
    return fields


def _result(trial: Mapping[str, Any]) -> str:
    return f"{trial['right']}/{trial['asked']}" if trial["state"] == "done" else trial["state"].replace("_", " ")


def _approve(session: "ServerSession", api: Mapping[str, Any], mode: str | None) -> Mapping[str, Any]:
    """The project, once it has this mode for the API's operations, if one is given."""
    patch = None if mode is None else {"settings": {"approvals": {"operations": {_pattern(api): mode}}}}
    method, path = "GET" if patch is None else "PATCH", f"/v1/projects/{api['project']}"
    project: Mapping[str, Any] = session.server.request(method, path, patch)
    return project


def _approval_line(api: Mapping[str, Any], project: Mapping[str, Any]) -> str:
    rules = project["settings"]["approvals"]
    mode = rules["operations"].get(_pattern(api), rules["default"])
    most = "" if mode in ("write", "always") or not rules["max_writes"] else rules["max_writes"]
    then = f"; after {most} changes of one task the next one does" if most else ""
    return f"approval {mode}: {_WAITS[mode]}{then}. Change it: sage apis approve {api['name']} MODE"


def _pattern(api: Mapping[str, Any]) -> str:
    return f"{api['name']}.*"


def _document(place: str) -> dict[str, str]:
    """Raises BadParameter for text that cannot be read."""
    if place.lower().startswith(("http://", "https://")):
        return {"url": place}
    about = "DOCUMENT, a URL or a file"
    if _NO_SCHEME.match(place) and not Path(place).exists():
        raise click.BadParameter(f"{about}: there is no file {place!r}; a URL begins with http:// or https://")
    return {"document": text_of_stdin(about) if place == "-" else text_of_file(place, about)}


def _show(session: "ServerSession", api: Mapping[str, Any], project: str | None) -> None:
    """The API with its operations, and which of its credentials are missing."""
    short = {"credentials": states(api["credentials"]), "trial": _summary(api["trial"], api["name"])}
    session.show(
        api,
        lambda shown: {name: value for name, value in shown.items() if name != "prompt_signatures"} | short,
        table=_OPERATIONS,
    )
    if not session.as_json:
        show_missing(api, project)


for _command in (connect_api, list_credentials, disconnect_api):
    apis.add_command(_command)
