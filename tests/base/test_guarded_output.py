"""A server process whose output cannot be written, as on a full disk: a child process each, on real files."""

import json
import resource
import subprocess
import sys
from pathlib import Path

PRELUDE = """
import asyncio, logging, pathlib, resource, sys
import click, structlog
from app.base.guarded_output import dropped_lines, guard_output
from app.base.log import configure_logging
from app.base.loop import Loop
guard_output()
"""
WRITE_ALL_WAYS = """
configure_logging("info")
print("one")
click.echo("two")
click.echo("three", err=True)
structlog.get_logger().error("four")
logging.error("five")
sys.stderr.flush()
pathlib.Path(sys.argv[1]).write_text(str(dropped_lines()))
"""
FAILING_LOOP = """
rounds = 0
async def tick():
    global rounds
    rounds += 1
    raise (OSError, ValueError)[rounds % 2]("a failure")
async def main():
    async with Loop("work", tick, 0.01, expected=(OSError,)) as loop:
        while rounds < 6:
            await asyncio.sleep(0.01)
        pathlib.Path(sys.argv[1]).write_text(f"{loop.failed >= 5} {loop.restarts}")
asyncio.run(main())
"""
FULL_FOR_A_WHILE = """
print("before")
def allow(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
allow(10)
print("lost entirely")
print("so is this")
allow(resource.RLIM_INFINITY)
print("after")
"""


def run(code: str, result: Path, output: Path) -> str:
    with output.open("a") as out:
        ended = subprocess.run([sys.executable, "-c", code, str(result)], stdout=out, stderr=out, check=False)
    assert ended.returncode == 0
    return result.read_text() if result.exists() else ""


def test_no_way_to_write_raises_on_a_full_device_and_lost_lines_are_counted(tmp_path: Path) -> None:
    assert run(PRELUDE + WRITE_ALL_WAYS, tmp_path / "dropped", Path("/dev/full")) == "5"


def test_a_closed_pipe_is_no_error_either() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + "sys.stdin.read(); print('one'); print('two', file=sys.stderr)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.close()
        assert process.wait() == 0


def test_a_loop_whose_failures_cannot_be_logged_goes_on(tmp_path: Path) -> None:
    assert run(PRELUDE + FAILING_LOOP, tmp_path / "result", Path("/dev/full")) == "True 0"


def test_a_loop_is_started_again_where_logging_itself_raises(tmp_path: Path) -> None:
    code = PRELUDE.removesuffix("guard_output()\n") + FAILING_LOOP + "import os; os._exit(0)"
    failed, restarts = run(code, tmp_path / "result", Path("/dev/full")).split()
    assert failed == "True"
    assert int(restarts) >= 4


def test_when_there_is_room_again_the_number_of_lost_lines_is_written_and_no_line_is_torn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(PRELUDE + FULL_FOR_A_WHILE, tmp_path / "none", log)
    lines = log.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    [report] = [json.loads(line) for line in lines if line.startswith("{")]
    assert (report["lines"], report["level"]) == (2, "warning")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY, "only the child had the limit"
