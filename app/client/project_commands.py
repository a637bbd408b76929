"""`sage projects`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from app.client.options import ListingGroup, server_command
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

_LISTING = listing_of("name", "created_at", "id")


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
