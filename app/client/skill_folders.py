"""Folders of skills on this machine, in the format of Agent Skills.

Both sides may be hostile: a server must write nowhere but into the directory, and a folder must give away no file
from outside of it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Final

import msgspec

from app.base.errors import AppError

SKILL_MD: Final = "SKILL.md"
_FOLDER = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SCRIPT = re.compile(r"scripts/\w[\w-]*\.py")
_MAX_BYTES = 512 << 10  # of a file; the server takes fewer characters
_MAX_FILES = 100


class SkillFolderError(AppError):
    """A folder cannot be read or written."""


class UnreadableFolder(msgspec.Struct, frozen=True):
    """A folder that is not sent, with the name of the error."""

    name: str
    error: str
    detail: str


def read_folders(directory: Path) -> tuple[list[dict[str, Any]], list[UnreadableFolder]]:
    """The skills in a directory, or the one that it is itself. Raises SkillFolderError without any."""
    single = (directory / SKILL_MD).exists()
    try:
        found = [directory.resolve()] if single else sorted(_folders(directory))
    except OSError as error:
        raise SkillFolderError(f"{directory} cannot be read: {error.strerror}") from error
    if not found:
        raise SkillFolderError(f"{directory} has no folders: name a directory with a folder for each skill")
    read, refused = [], []
    for folder in found:
        try:
            read.append({"name": folder.name, "files": dict(_files(folder))})
        except _UnreadableError as error:
            refused.append(UnreadableFolder(folder.name, error.name, str(error)))
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
