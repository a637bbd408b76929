"""The limits of a runner process: its watchdog and its memory."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.base.errors import SettingError
from app.base.loop import UNRESPONSIVE
from app.base.settings import Settings
from app.tasks.runner import MemoryWatch, limit_memory, resident_bytes
from tests.support.every_row import every_row
from tests.support.ledger_project import until

_WATCHED = """
import asyncio, re, threading, time
from app.tasks.runner import Watchdog
async def main():
    async with Watchdog(2):
        await asyncio.sleep(1.5)
        print("responsive", flush=True)
        {blocks}
    print("survived")
asyncio.run(main())
"""
_LIMITED = """
import os
from app.tasks.runner import limit_memory
from app.base.settings import Settings
limit_memory(Settings(runner_memory_mb=600))
kept = bytearray(100 << 20)
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused")
"""


_BUSY = """
import asyncio, os, time
from app.tasks.runner import Watchdog
{where}
async def main():
    async with Watchdog(1):
        for seconds in (0.1, {seconds}):
            print(seconds, flush=True)
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                {waits}
            await asyncio.sleep(0)
    print("survived", flush=True)
    os._exit(0)  # to free all modules takes a starved process minutes
asyncio.run(main())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_process_whose_event_loop_stops_ends_and_says_where_it_was() -> None:
    held = "threading.Thread(target=re.match, args=('(a+)+$', 'a' * 60 + 'b')).start(); await asyncio.sleep(60)"
    with every_row() as row:
        for blocks in ("re.match('(a+)+$', 'a' * 60 + 'b')", "time.sleep(60)", held):
            with row(blocks):
                done = run(_WATCHED.format(blocks=blocks))
                assert (done.returncode, done.stdout) == (-UNRESPONSIVE, "responsive\n"), done.stderr
                assert "most recent call first" in done.stderr
                assert blocks == held or "in main" in done.stderr


@contextmanager
def crowded_processor() -> Iterator[str]:
    """Code after which a process gets one part in seven of a processor."""
    number = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, [{number}])\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    try:
        yield f"os.sched_setaffinity(0, [{number}]); os.nice(5)"
    finally:
        for each in others:
            each.kill()
            each.wait()


def test_the_time_for_which_a_host_has_no_processor_does_not_count() -> None:
    with crowded_processor() as where:
        for waits, status in (("pass", 0), ("time.sleep(seconds)", -UNRESPONSIVE)):
            done = run(_BUSY.format(where=where, seconds=3, waits=waits))
            assert (done.returncode, "survived" in done.stdout) == (status, status == 0), done.stderr


def test_the_time_for_which_a_process_is_stopped_does_not_count() -> None:
    code = _BUSY.format(where="", seconds=0.5, waits="pass")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0.1\n", "0.5\n"]
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0


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
