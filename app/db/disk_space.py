"""Free space of this machine's disks: the data directory's, and that of a database on this machine."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import make_url, text

from app.db.database import TRANSIENT, Sessions, full_url
from app.settings import Settings

_AGAIN = 1.1  # times the minimum: enough, once a disk was short of it
_MIN_INODES = 100
_DIRECTORY = text("SELECT setting FROM pg_settings WHERE name = 'data_directory'")  # no row without the privilege


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
        if self._database_unknown:
            await self._add_database()
        found = await asyncio.to_thread(self._measure)
        self._short = bool(found)
        return found

    async def _add_database(self) -> None:
        try:
            async with self._sessions() as session:
                directory = await session.scalar(_DIRECTORY)
        except TRANSIENT:
            return  # asked again
        self._database_unknown = False
        if directory:
            self._directories += [Path(directory), Path(directory) / "pg_wal"]

    def _measure(self) -> str:
        needed = self._minimum * (_AGAIN if self._short else 1)
        return "; ".join(_faults(self._directories, needed))


def _faults(directories: list[Path], needed: float) -> Iterator[str]:
    seen = set[int]()
    for directory in directories:
        try:
            device, disk = directory.stat().st_dev, os.statvfs(directory)
        except OSError:
            continue  # it is not on this machine, or not for this user
        if device in seen:
            continue
        seen.add(device)
        free = disk.f_bavail * disk.f_frsize
        if free < needed:
            yield (
                f"{free >> 20} MB are free on the disk of {directory}: no task is claimed below "
                f"{int(needed) >> 20} MB (SAGE_MIN_FREE_DISK_MB)"
            )
        elif disk.f_files and disk.f_favail < _MIN_INODES:
            yield f"the disk of {directory} has room for {disk.f_favail} files: no task is claimed"


def _is_local(url: str) -> bool:
    parsed = make_url(full_url(url))
    host = str(parsed.host or parsed.query.get("host") or "/")
    return host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")
