"""Whether a runner ended by itself or was killed from outside can be told after its death."""

import subprocess
import sys
from pathlib import Path

from app.tasks.runner import CrashFile
from tests.support.every_row import every_row

_PROCESS = """
import asyncio, os, signal, sys, time
from pathlib import Path
from app.tasks.runner import CrashFile

async def main() -> None:
    async with CrashFile(Path(sys.argv[1]), "it", 0.5):
        await asyncio.sleep(0.2)
        {}

asyncio.run(main())
"""
_KILL = "os.kill(os.getpid(), signal.SIGKILL)"
_ENDS = {
    "killed from outside": (_KILL, False),
    "aborted": ("os.abort()", True),
    "ended by its watchdog": (f"time.sleep(1.5); {_KILL}", True),
    "killed after it had been stuck": (f"time.sleep(1.5); await asyncio.sleep(1); {_KILL}", False),
    "stopped": ("return", False),
}


def test_only_an_end_by_itself_leaves_a_trace_and_it_is_told_once(tmp_path: Path) -> None:
    with every_row() as row:
        for how, (code, by_itself) in _ENDS.items():
            subprocess.run([sys.executable, "-c", _PROCESS.format(code), tmp_path], check=False)
            crashes = CrashFile(tmp_path, "another", 0.5)
            with row(how):
                assert [crashes.ended_by_itself("it") for _ in range(2)] == [by_itself, False]
    assert list(tmp_path.iterdir()) == []


async def test_where_no_file_can_be_written_an_end_looks_like_a_kill(tmp_path: Path) -> None:
    (tmp_path / "runners").write_text("no directory")
    async with CrashFile(tmp_path / "runners", "it", 0.5) as crashes:
        assert not crashes.ended_by_itself("another")
