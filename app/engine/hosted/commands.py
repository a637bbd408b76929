"""`sage models`, as far as it is about the models that other servers host."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from app.client.options import project_option, secret_in, server_command
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

_LISTING = listing_of("name", "model", "url", "has_key", "price_in", "price_out", "probed_at", "failure")


def _model_options(command: Callable[..., None]) -> Callable[..., None]:
    """What a model has besides its place."""
    for option in (
        click.option("--price-out", type=click.FloatRange(0), help="of a million generated tokens"),
        click.option("--price-in", type=click.FloatRange(0), help="of a million tokens of prompts"),
        click.option("--key-env", metavar="VAR", help="the environment variable that holds the endpoint's key"),
    ):
        command = option(command)
    return project_option(command)


@click.command("add")
@server_command
@click.argument("name")
@click.option("--endpoint", required=True, metavar="URL", help="a server, or the base URL of its API")
@click.option("--model", required=True, metavar="ID", help="name of the model there")
@_model_options
def add_model(
    session: "ServerSession", name: str, project: str | None, key_env: str | None, **fields: Any
) -> None:
    """Add a model that an OpenAI-compatible endpoint hosts, under NAME. It is probed with a few small requests."""
    body = {"name": name, "project": project, **_body(fields, key_env)}
    _show(session, session.server.request("POST", "/v1/hosted-models", body))


@click.command("change")
@server_command
@click.argument("name")
@click.option("--endpoint", metavar="URL", help="another URL: at another server, with its key")
@click.option("--model", metavar="ID", help="name of the model there")
@_model_options
def change_model(
    session: "ServerSession", name: str, project: str | None, key_env: str | None, **fields: Any
) -> None:
    """Change a hosted model. What is not named stays."""
    path = f"/v1/hosted-models/{name}"
    _show(session, session.server.request("PATCH", path, _body(fields, key_env), project=project))


@click.command("hosted")
@server_command
@project_option
def list_hosted(session: "ServerSession", project: str | None) -> None:
    """List the models of a project that other servers host."""
    session.show_list("/v1/hosted-models", _LISTING, project=project)


@click.command("probe")
@server_command
@click.argument("name")
@project_option
@click.pass_context
def probe_model(context: click.Context, session: "ServerSession", name: str, project: str | None) -> None:
    """Probe a hosted model again. Exits with code 1 if it cannot be used."""
    found = session.server.request("POST", f"/v1/hosted-models/{name}/probe", project=project)
    _show(session, found)
    if found["failure"]:
        context.exit(1)


@click.command("remove")
@server_command
@click.argument("name")
@project_option
def remove_model(session: "ServerSession", name: str, project: str | None) -> None:
    """Remove a hosted model, unless a release serves with it, or a task runs on it. Its key is deleted."""
    gone = session.server.request("DELETE", f"/v1/hosted-models/{name}", project=project)
    session.confirm(gone, f"removed the model {name}")


@click.command("demonstrate")
@server_command
@click.argument("name")
@click.option("--tasks", type=click.Choice(["failed", "unscored"]), required=True, help="how they ended")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="the newest ones")
@project_option
def demonstrate(session: "ServerSession", name: str, project: str | None, tasks: str, limit: int) -> None:
    """Let a hosted model do tasks of the project again, to learn from it. They only read."""
    body = {"tasks": tasks, "limit": limit}
    found = session.server.request("POST", f"/v1/hosted-models/{name}/tasks", body, project=project)
    ids = [each["id"] for each in found["tasks"]]
    which = f"release {found['release']} does {len(ids)} {tasks} tasks again, after all that wait:"
    session.confirm(found, "\n".join([which, *ids]) if ids else f"no {tasks} task is left for {name}")


def _body(fields: Mapping[str, Any], key_env: str | None) -> dict[str, Any]:
    """Of a request. Raises WrongUsageError for a variable that is not set."""
    body = {"url" if name == "endpoint" else name: value for name, value in fields.items() if value is not None}
    return body if key_env is None else {**body, "key": secret_in(key_env, "the endpoint's key")}


def _show(session: "ServerSession", found: Mapping[str, Any]) -> None:
    session.show(found, _fields)


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    can = found["abilities"]
    shown = {name: found[name] for name in ("name", "project", "url", "model", "has_key", "price_in", "price_out")}
    shown |= {"context": can["context"] or "unknown", "thoughts": can["thoughts"], "token limit": can["limit"]}
    shown |= {"temperature": can["temperature"], "stop strings": can["stops"], "counts tokens": can["usage"]}
    return shown | {name: found[name] for name in ("remark", "failure") if found[name]}
