"""The limits of a runner process: its watchdog and its memory."""

import subprocess
import sys

import pytest

from app.errors import SettingError
from app.runner.process_limits import MemoryWatch, limit_memory, resident_bytes
from app.settings import Settings
from tests.ledger_project import until

_WATCHED = """
import asyncio, re, time
from app.runner.process_limits import Watchdog
async def main():
    async with Watchdog(4):
        await asyncio.sleep(1.5)
        print("responsive", flush=True)
        {blocks}
    print("survived")
asyncio.run(main())
"""
_LIMITED = """
import os
from app.runner.process_limits import limit_memory
from app.settings import Settings
limit_memory(Settings(runner_memory_mb=600))
kept = bytearray(100 << 20)
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("blocks", ["re.match('(a+)+$', 'a' * 60 + 'b')", "time.sleep(60)"])
def test_a_process_whose_event_loop_stops_ends_and_says_where_it_was(blocks: str) -> None:
    done = run(_WATCHED.format(blocks=blocks))
    assert (done.returncode, done.stdout) == (1, "responsive\n")
    assert "Timeout (0:00:04)!" in done.stderr
    assert "in main" in done.stderr


def test_a_process_that_responds_is_left_alone() -> None:
    done = run(_WATCHED.format(blocks="await asyncio.sleep(3)"))
    assert (done.returncode, done.stdout) == (0, "responsive\nsurvived\n")


def test_allocations_beyond_the_limit_fail() -> None:
    assert run(_LIMITED).stdout == "refused\n"


def test_a_limit_without_room_for_a_session_is_refused() -> None:
    with pytest.raises(SettingError, match=r"SAGE_RUNNER_MEMORY_MB=256 is too little: .* set at least"):
        limit_memory(Settings(runner_memory_mb=256, sandbox_memory_mb=256))


async def test_a_process_near_its_limit_is_reported_once() -> None:
    reports: list[int] = []
    async with MemoryWatch(resident_bytes() // 2, lambda: reports.append(1)) as watch:
        for _ in range(2):
            watch.used = 0
            await until(lambda: watch.used > 0)
    assert reports == [1]
    assert "near its limit" in watch.excess
    async with MemoryWatch(resident_bytes() * 2, lambda: reports.append(1)) as watch:
        watch.used = 0
        await until(lambda: watch.used > 0)
    assert (reports, watch.excess) == ([1], "")
