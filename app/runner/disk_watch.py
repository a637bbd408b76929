"""Stops the claims of a runner before a disk is full: what is under way needs the rest to be recorded."""

from typing import Self

import structlog

from app.base.loop import Loop
from app.db.disk_space import DiskSpace
from app.db.runners import DISK
from app.runner.runner import Runner

log = structlog.get_logger(__name__)

_SECONDS = 1.0


class DiskWatch:
    """While entered, the runner claims nothing while a disk lacks space. Enter it before the runner."""

    def __init__(self, runner: Runner, disk: DiskSpace) -> None:
        self._runner, self._disk = runner, disk
        self._loop = Loop("watch the disks", self._look, _SECONDS, part=DISK, limit=30)

    async def __aenter__(self) -> Self:
        await self._look()  # before the first claim
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    async def _look(self) -> None:
        shortage = await self._disk.shortage()
        known = DISK in self._runner.faults
        if shortage:
            self._runner.faults[DISK] = shortage
        else:
            self._runner.faults.pop(DISK, None)
        if shortage and not known:
            log.error("no tasks are claimed: a disk is nearly full", cause=shortage)
        if known and not shortage:
            log.warning("tasks are claimed again: the disk has space")
            self._runner.wake()
