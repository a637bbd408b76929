"""Free space of this machine's disks: the data directory's, and that of a database on this machine."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from sqlalchemy import make_url, text

from app.base.settings import Settings
from app.db.database import TRANSIENT, Sessions, full_url

_AGAIN = 1.1  # times the minimum: enough, once a disk was short of it
_MIN_INODES = 100
_DIRECTORY = text("SELECT setting FROM pg_settings WHERE name = 'data_directory'")  # no row without the privilege


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The disk that holds a directory."""

    directory: Path
    free_bytes: int
    total_bytes: int
    files: int  # that it has room for, 0 if that is not limited
    free_files: int


class DiskSpace:
    """Compares it with SAGE_MIN_FREE_DISK_MB. Disks that this process cannot see are not watched."""

    def __init__(self, sessions: Sessions, settings: Settings) -> None:
        self._sessions = sessions
        self._directories = [settings.data_dir.absolute()]
        self._minimum = settings.min_free_disk_mb << 20
        self._database_unknown = _is_local(settings.database_url)
        self._short = False

    async def shortage(self) -> str:
        """Which disk lacks space; "" if none, or if the minimum is 0."""
        if not self._minimum:
            return ""
        disks = await self.disks()
        needed = int(self._minimum * (_AGAIN if self._short else 1))
        found = "; ".join(fault for disk in disks if (fault := _fault(disk, needed)))
        self._short = bool(found)
        return found

    async def disks(self) -> list[Disk]:
        """Each one once."""
        if self._database_unknown:
            await self._add_database()
        return await asyncio.to_thread(lambda: list(_measure(self._directories)))

    async def _add_database(self) -> None:
        try:
            async with self._sessions() as session:
                directory = await session.scalar(_DIRECTORY)
        except TRANSIENT:
            return  # asked again
        self._database_unknown = False
        if directory:
            self._directories += [Path(directory), Path(directory) / "pg_wal"]


def _measure(directories: list[Path]) -> Iterator[Disk]:
    seen = set[int]()
    for directory in directories:
        try:
            device, disk = directory.stat().st_dev, os.statvfs(directory)
        except OSError:
            continue  # it is not on this machine, or not for this user
        if device in seen:
            continue
        seen.add(device)
        yield Disk(
            directory=directory,
            free_bytes=disk.f_bavail * disk.f_frsize,
            total_bytes=disk.f_blocks * disk.f_frsize,
            files=disk.f_files,
            free_files=disk.f_favail,
        )


def _fault(disk: Disk, needed: int) -> str:
    """
    >>> disk = Disk(directory=Path("/data"), free_bytes=1 << 30, total_bytes=9 << 30, files=9, free_files=3)
    >>> _fault(disk, 1)
    'the disk of /data has room for 3 files: no task is claimed'
    """
    if disk.free_bytes < needed:
        return (
            f"{disk.free_bytes >> 20} MB are free on the disk of {disk.directory}: no task is claimed below "
            f"{needed >> 20} MB (SAGE_MIN_FREE_DISK_MB)"
        )
    if disk.files and disk.free_files < _MIN_INODES:
        return f"the disk of {disk.directory} has room for {disk.free_files} files: no task is claimed"
    return ""


def _is_local(url: str) -> bool:
    parsed = make_url(full_url(url))
    host = str(parsed.host or parsed.query.get("host") or "/")
    return host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")
