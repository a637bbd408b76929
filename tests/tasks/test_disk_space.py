"""Claims stop before a disk is full, and resume once it has space."""

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from app.base.settings import Settings
from app.db.database import Sessions
from app.db.disk_space import DiskSpace
from app.tasks.runner import DiskWatch, RunnerOptions
from tests.support.ledger_policies import Stuck
from tests.support.ledger_project import LedgerProject, until
from tests.support.small_filesystem import fill, small_filesystem

MB = 1 << 20
OPTIONS = RunnerOptions(concurrency=3, lease_seconds=600, poll_seconds=0.05, grace_seconds=0.2)


def disk_space(sessions: Sessions, directory: Path, minimum: int, url: str = "postgresql://db/x") -> DiskSpace:
    settings = Settings(data_dir=directory, min_free_disk_mb=minimum, database_url=url)
    return DiskSpace(sessions, settings)


async def test_a_disk_is_short_below_the_minimum_and_until_it_has_a_tenth_more(
    committed: Sessions, tmp_path: Path
) -> None:
    with small_filesystem(tmp_path / "disk", 8) as directory:
        disk = disk_space(committed, directory, 4)
        assert await disk.shortage() == ""
        filler = fill(directory)
        assert (await disk.shortage()).startswith(f"0 MB are free on the disk of {directory}: no task is claimed")
        for free, short in ((3 * MB, True), (4 * MB + 64_000, True), (5 * MB, False), (4 * MB + 64_000, False)):
            filler.unlink()
            fill(directory, leave=free)
            assert bool(await disk.shortage()) is short, free


async def test_the_disk_of_a_database_on_this_machine_is_watched(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    with small_filesystem(tmp_path / "disk", 8) as directory:
        disk = disk_space(committed, directory, 4, database_url)
        assert await disk.shortage() == ""
        there = disk_space(committed, directory, 10**9, database_url)
        assert len((await there.shortage()).split("; ")) == 2


async def test_without_a_minimum_or_a_visible_directory_nothing_is_short(
    committed: Sessions, tmp_path: Path
) -> None:
    assert await disk_space(committed, tmp_path, 0).shortage() == ""
    assert await disk_space(committed, tmp_path / "absent", 10**9).shortage() == ""
    assert "SAGE_MIN_FREE_DISK_MB" in await disk_space(committed, tmp_path, 10**9).shortage()


async def test_a_runner_claims_nothing_while_its_disk_is_nearly_full(
    project: LedgerProject, tmp_path: Path
) -> None:
    with small_filesystem(tmp_path / "disk", 8) as directory, capture_logs() as logs:
        filler = fill(directory)
        disk = disk_space(project.sessions, directory, 4)
        runner = project.runner(Stuck(project.tokenizer), OPTIONS)
        async with DiskWatch(runner, disk), runner:
            task_id = await project.submit()
            assert "no task is claimed below 4 MB" in runner.faults["disk"]
            await asyncio.sleep(0.5)
            assert (await project.row(task_id)).owner is None
            filler.unlink()
            await until(lambda: runner.running == 1)
            assert runner.faults == {}
    assert [each["log_level"] for each in logs if "disk" in each["event"]] == ["error", "warning"]
