"""`sage skills`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from app.client.listing import listing_of
from app.client.listing_group import ListingGroup
from app.client.options import page_options, project_option, server_command

if TYPE_CHECKING:
    from app.client.server_session import ServerSession

SKILL_STATES = ("quarantined", "probation", "active", "superseded", "retired", "deleted")
_LISTING = listing_of("id", "name", "version", "state", "created_at", "instruction", items="skills")
_FOUND = listing_of("id", "name", "version", "signature")
_MOVES = {
    "approve": "Move a skill from quarantine to probation, or from probation to active.",
    "retire": "Offer no version of this skill again, until one is restored.",
    "restore": "Give this version the state that it had, in place of every other version.",
}


@click.group(cls=ListingGroup)
def skills() -> None:
    """List, find and manage skills: the functions that the agent wrote and kept."""


@skills.command("list")
@server_command
@project_option
@click.option("--state", type=click.Choice(SKILL_STATES), help="list only skills in this state")
@click.option("--name", help="versions of this name")
@click.option("--scenario", help="written in this scenario")
@click.option("--api", help="that call this `app` or `app.operation`")
@click.option("--principal", help="written for this user")
@page_options
def list_skills(session: "ServerSession", **only: Any) -> None:
    """List skills, newest first."""
    session.show_list("/v1/skills", _LISTING, **only)


@skills.command("search")
@server_command
@click.argument("instruction")
@project_option
@click.option("--scenario", help="of the task")
@click.option("--principal", help="the user on whose behalf the task would be carried out")
@click.option(
    "--limit", type=click.IntRange(1, 50), default=10, show_default=True, help="maximum number of skills"
)
def search_skills(session: "ServerSession", instruction: str, **only: Any) -> None:
    """Show the skills that a task with INSTRUCTION would be offered, best first."""
    session.show_list("/v1/skills/search", _FOUND, q=instruction, **only)


@skills.command("show")
@server_command
@click.argument("skill", type=click.UUID)
def show_skill(session: "ServerSession", skill: UUID) -> None:
    """Show the source of a skill, its use, and the evidence for its state."""
    session.show(session.server.request("GET", f"/v1/skills/{skill}"), _without_manifest, code="source")


def _add_move(name: str, summary: str) -> None:
    @skills.command(name, help=summary)
    @server_command
    @click.argument("skill", type=click.UUID)
    def move(session: "ServerSession", skill: UUID) -> None:
        moved = session.server.request("POST", f"/v1/skills/{skill}/{name}")
        session.confirm(moved, f"{moved['name']} v{moved['version']} is {moved['state']}")


for _name, _summary in _MOVES.items():
    _add_move(_name, _summary)


def _without_manifest(skill: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in skill.items() if name != "manifest"}
