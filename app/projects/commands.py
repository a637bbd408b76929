"""`sage projects`, and `sage keys` as far as it works over REST."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from app.client.options import ListingGroup, server_command
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


_LISTING = listing_of("name", "created_at", "id")
KEY_SCOPES = ("tasks", "skills", "approvals", "admin")
_KEY_LISTING = listing_of("id", "prefix", "project", "scopes", "created_at", "revoked_at", "name")


@click.group(cls=ListingGroup)
def projects() -> None:
    """List, show and create projects, which isolate APIs, skills, tasks, releases and keys."""


@projects.command("list")
@server_command
def list_projects(session: "ServerSession") -> None:
    """List the projects that the key can access."""
    session.show_list("/v1/projects", _LISTING)


@projects.command("show")
@server_command
@click.argument("name")
def show_project(session: "ServerSession", name: str) -> None:
    """Show the settings of a project."""
    session.show(session.server.request("GET", f"/v1/projects/{name}"))


@projects.command("usage")
@server_command
@click.argument("name")
def show_usage(session: "ServerSession", name: str) -> None:
    """Show what a project uses today, its limits, and what is left of them."""
    session.show(session.server.request("GET", f"/v1/projects/{name}/usage"), _without_days)


@projects.command("create")
@server_command
@click.argument("name")
def create_project(session: "ServerSession", name: str) -> None:
    """Create a project. Needs an administrator's key for all projects."""
    created = session.server.request("POST", "/v1/projects", {"name": name})
    session.confirm(created, f"created {created['name']}")


def _without_days(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "days"}


@click.command("list")
@server_command
def list_keys(session: "ServerSession") -> None:
    """List keys, without their secrets."""
    session.show_list("/v1/keys", _KEY_LISTING)


@click.command("revoke")
@server_command
@click.argument("key_id", metavar="ID", type=click.UUID)
def revoke_key(session: "ServerSession", key_id: UUID) -> None:
    """Revoke a key, effective immediately."""
    session.confirm(session.server.request("DELETE", f"/v1/keys/{key_id}"), f"revoked {key_id}")


@click.command("create")
@server_command
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(KEY_SCOPES), default=["tasks"], show_default=True
)
@click.option("--project", help="limit the key to this project  [default: all that your key can access]")
def create_key(session: "ServerSession", name: str, scopes: tuple[str, ...], project: str | None) -> None:
    """Create a key, and print its secret: it is shown only here.

    Where no key is at hand, `sage keys create-admin` makes one on the machine of the database.
    """
    created = session.server.request("POST", "/v1/keys", {"name": name, "scopes": scopes, "project": project})
    valid = f"for {', '.join(created['scopes'])} in {created['project'] or 'all projects'}"
    click.echo(f"the key {created['name']}, {valid}, is shown only here:", err=True)
    session.confirm(created, created["secret"])
