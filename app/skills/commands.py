"""`sage skills`, with the folders of skills on this machine, in the format of Agent Skills.

Both sides may be hostile: a server must write nowhere but into the directory, and a folder must give away no
file from outside of it.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from app.base.errors import AppError
from app.client.options import ListingGroup, page_options, project_option, server_command
from app.client.words import listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

SKILL_MD: Final = "SKILL.md"
_FOLDER = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SCRIPT = re.compile(r"scripts/\w[\w-]*\.py")
_MAX_BYTES = 512 << 10  # of a file; the server takes fewer characters
_MAX_FILES = 100
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


class SkillFolderError(AppError):
    """A folder cannot be read or written."""


def read_folders(directory: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The skills in a directory, or the one that it is itself; and the folders that cannot be sent, as the server
    reports those that it refuses. Raises SkillFolderError without any.
    """
    single = (directory / SKILL_MD).exists()
    try:
        found = [directory.resolve()] if single else sorted(_folders(directory))
    except OSError as error:
        raise SkillFolderError(f"{directory} cannot be read: {error.strerror}") from error
    if not found:
        raise SkillFolderError(f"{directory} has no folders: name a directory with a folder for each skill")
    read: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    unknown: dict[str, Any] = dict.fromkeys(("id", "name", "version", "state"))
    for folder in found:
        try:
            read.append({"name": folder.name, "files": dict(_files(folder))})
        except _UnreadableError as error:
            about = {"folder": folder.name, "result": "refused", "error": error.name, "detail": str(error)}
            refused.append(about | unknown)
    return read, refused


def write_folder(directory: Path, folder: Mapping[str, Any]) -> Path:
    """Write or replace the files of a folder from the server. Raises SkillFolderError."""
    name: str = folder["name"]
    files: Mapping[str, str] = folder["files"]
    if not _FOLDER.fullmatch(name):
        raise SkillFolderError(f"the server names a folder {name!r}, which is no name of a skill")
    for path, text in files.items():
        if path != SKILL_MD and not _SCRIPT.fullmatch(path):
            raise SkillFolderError(f"the server names a file {path!r}, which is none of a skill")
        _write(directory, [name, *path.split("/")], text)
    return directory / name


class _UnreadableError(Exception):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _folders(directory: Path) -> Iterator[Path]:
    """Also links, which are refused later, and not passed over in silence."""
    for entry in directory.iterdir():
        if not entry.name.startswith(".") and (entry.is_symlink() or entry.is_dir()):
            yield entry


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """SKILL.md, and what is in scripts."""
    if not S_ISDIR(folder.lstat().st_mode):
        raise _UnreadableError("symlink", "it is a link, which may lead anywhere")
    if not (folder / SKILL_MD).exists():
        raise _UnreadableError("front_matter", f"{SKILL_MD} is missing")
    yield SKILL_MD, _text(folder / SKILL_MD)
    scripts = folder / "scripts"
    if scripts.is_symlink():
        raise _UnreadableError("symlink", "scripts is a link, which may lead anywhere")
    found = sorted(scripts.iterdir()) if scripts.is_dir() else []
    if len(found) > _MAX_FILES:
        raise _UnreadableError("too_large", f"scripts has more than {_MAX_FILES} files")
    for file in found:
        if file.suffix == ".py":
            yield f"scripts/{file.name}", _text(file)


def _text(file: Path) -> str:
    """Follows no link, and does not wait for a pipe."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        kind = "symlink" if file.is_symlink() else "unreadable"
        raise _UnreadableError(kind, f"{file.name} is a link or cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as content:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise _UnreadableError("unreadable", f"{file.name} is no file")
        data = content.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise _UnreadableError("too_large", f"{file.name} has more than {_MAX_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _UnreadableError("unreadable", f"{file.name} is not UTF-8: {error.reason}") from error


def _write(directory: Path, parts: list[str], text: str) -> None:
    """Follows no link below the directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = directory
        for part in parts[:-1]:
            place = place / part
            place.mkdir(exist_ok=True)
            if place.is_symlink():
                raise SkillFolderError(f"{place} is a link: remove it, or choose another directory")
        target = place / parts[-1]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(target, flags, 0o666), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise SkillFolderError(f"{directory.joinpath(*parts)} cannot be written: {error.strerror}") from error


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
    folders, refused = read_folders(directory)
    report: dict[str, Any] = {"imported": 0, "present": 0, "refused": len(refused), "folders": refused}
    for start in range(0, len(folders), _AT_ONCE):
        body = {"folders": folders[start : start + _AT_ONCE], "project": project}
        answer = session.server.request("POST", "/v1/skills/import", body)
        report = {name: value + answer[name] for name, value in report.items()}
    session.show(report, table=_IMPORTED)
    sys.exit(1 if report["refused"] else 0)


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
