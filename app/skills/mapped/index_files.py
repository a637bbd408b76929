"""The mapped files of each project on this host: written by one process at a time, complete or absent.

A directory for each project holds one for each time its files were written, and a link to the one in use.
"""

import fcntl
import inspect
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec

from app.base.errors import AppError
from app.skills import ngrams
from app.skills.mapped.mapped_skills import MappedSkills

_LAYOUT: Final = 2
_TOKENS: Final = zlib.crc32(inspect.getsource(ngrams).encode())  # which n-grams a text has
_MANIFEST, _LINK, _LOCK = "manifest.json", "current", "lock"
_PART = 1 << 22


class DamagedIndexError(AppError):
    """Mapped files are incomplete or changed, or of another version of the program."""


class BusyIndexError(AppError):
    """Another process writes the files of this project."""


class IndexManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the files hold: the skills of a project as of a revision."""

    project: UUID
    rev: int
    last: UUID  # the skill changed last
    last_rev: int  # its revision
    count: int
    embedder: str | None
    checksums: dict[str, int] = {}  # of every file
    layout: int = _LAYOUT
    tokens: int = _TOKENS


class IndexFiles:
    """Files that were checked once by this process are not checked again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._opened: dict[UUID, tuple[str, IndexManifest, MappedSkills]] = {}

    def current(self, project_id: UUID) -> str | None:
        """The name of a project's files in use, if there are any."""
        try:
            return os.readlink(self._home(project_id) / _LINK)
        except OSError:
            return None

    def manifest(self, project_id: UUID) -> IndexManifest | None:
        """Of the files in use. None if there are none, or none of this version."""
        name = self.current(project_id)
        try:
            return _read_manifest(self._home(project_id) / name) if name else None
        except DamagedIndexError:
            return None

    def open(self, project_id: UUID, name: str) -> tuple[IndexManifest, MappedSkills]:
        """Reads all of the files once. Raises DamagedIndexError."""
        opened = self._opened.get(project_id)
        if opened is None or opened[0] != name:
            directory = self._home(project_id) / name
            manifest = _verified(directory)
            try:
                opened = name, manifest, MappedSkills(directory)
            except (OSError, ValueError, RuntimeError) as error:
                raise DamagedIndexError(f"{directory} cannot be read: {error}") from error
            self._opened[project_id] = opened
        return opened[1], opened[2]

    def discard(self, project_id: UUID, name: str) -> None:
        """Stop using files, unless others are in use by now."""
        self._opened.pop(project_id, None)
        if self.current(project_id) == name:
            (self._home(project_id) / _LINK).unlink(missing_ok=True)

    def keep_only(self, projects: set[UUID]) -> None:
        """Delete the files of all other projects."""
        for home in self.directory.iterdir() if self.directory.exists() else ():
            if home.name not in set(map(str, projects)):
                shutil.rmtree(home, ignore_errors=True)

    @contextmanager
    def writing(self, project_id: UUID) -> Iterator[Path]:
        """An empty directory, deleted unless it is published meanwhile.

        Raises BusyIndexError while another process is in this block, and OSError.
        """
        home = self._home(project_id)
        home.mkdir(parents=True, exist_ok=True)
        with (home / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyIndexError(f"another process writes {home}") from error
            directory = home / uuid4().hex
            directory.mkdir()
            try:
                yield directory
            finally:
                used = self.current(project_id)
                for each in home.iterdir():
                    if each.is_dir() and not each.is_symlink() and each.name != used:
                        shutil.rmtree(each, ignore_errors=True)

    def publish(self, directory: Path, manifest: IndexManifest) -> None:
        """Use the files from now on. Processes that have others mapped keep those until they look again."""
        checksums = {path.name: _checksum(path) for path in sorted(directory.iterdir())}
        content = msgspec.json.encode(msgspec.structs.replace(manifest, checksums=checksums))
        (directory / _MANIFEST).write_bytes(content)
        link = directory.parent / f"{_LINK}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(directory.name)
        os.replace(link, directory.parent / _LINK)

    def _home(self, project_id: UUID) -> Path:
        return self.directory / str(project_id)


def _read_manifest(directory: Path) -> IndexManifest:
    try:
        manifest = msgspec.json.decode((directory / _MANIFEST).read_bytes(), type=IndexManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedIndexError(f"{directory} has no readable manifest: {error}") from error
    if (manifest.layout, manifest.tokens) != (_LAYOUT, _TOKENS):
        raise DamagedIndexError(f"{directory} is of another version of the program")
    return manifest


def _verified(directory: Path) -> IndexManifest:
    manifest = _read_manifest(directory)
    for name, checksum in manifest.checksums.items():
        try:
            found = _checksum(directory / name)
        except OSError as error:
            raise DamagedIndexError(f"{directory / name} cannot be read: {error.strerror}") from error
        if found != checksum:
            raise DamagedIndexError(f"{directory / name} is damaged: its checksum differs")
    return manifest


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while part := file.read(_PART):
            checksum = zlib.crc32(part, checksum)
    return checksum
