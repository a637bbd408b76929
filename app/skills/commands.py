"""`sage skills`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from app.client.options import ListingGroup, page_options, project_option, server_command
from app.client.skill_folders import UnreadableFolder, read_folders, write_folder
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

SKILL_STATES = ("quarantined", "probation", "active", "superseded", "retired", "deleted")
_LISTING = listing_of("id", "name", "version", "state", "created_at", "instruction", items="skills")
_FOUND = listing_of("id", "name", "version", "signature")
_IMPORTED = listing_of("folder", "result", "id", "state", "error", "detail", items="folders")
_AT_ONCE = 100  # folders of one request
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


@skills.command("export")
@server_command
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@project_option
@click.option("--state", type=click.Choice(SKILL_STATES[:-1]), help="[default: those that are offered to all]")
@click.option("--name", help="of the function")
@click.option("--scenario", help="written in this scenario")
def export_skills(session: "ServerSession", directory: Path, **only: Any) -> None:
    """Write skills into DIRECTORY, a folder for each, in the format of Agent Skills.

    Files that are there already are replaced.
    """
    written = []
    for line in session.server.lines("/v1/skills/export", **only):
        skill = json.loads(line)
        folder = write_folder(directory, skill.pop("folder"))
        written.append({**skill, "folder": folder.name})
    session.confirm(written, f"wrote {len(written)} skills into {directory}")


@skills.command("import")
@server_command
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@project_option
def import_skills(session: "ServerSession", directory: Path, project: str | None) -> None:
    """Import the Agent Skills in DIRECTORY: those whose code calls the project's APIs.

    They are offered to no task before `sage skills approve`. Exits with code 1 if one is refused.
    """
    folders, unreadable = read_folders(directory)
    report = _refused_here(unreadable)
    for start in range(0, len(folders), _AT_ONCE):
        body = {"folders": folders[start : start + _AT_ONCE], "project": project}
        answer = session.server.request("POST", "/v1/skills/import", body)
        report = {name: value + answer[name] for name, value in report.items()}
    session.show(report, table=_IMPORTED)
    sys.exit(1 if report["refused"] else 0)


def _refused_here(unreadable: Sequence[UnreadableFolder]) -> dict[str, Any]:
    """As the server reports those that it refuses."""
    nothing = {"id": None, "name": None, "version": None, "state": None}
    refused = [
        {"folder": each.name, "result": "refused", "error": each.error, "detail": each.detail, **nothing}
        for each in unreadable
    ]
    return {"imported": 0, "present": 0, "refused": len(refused), "folders": refused}


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
