"""What the supervisor does about children that die while they start, hang, or fill their logs."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from app.machine import supervise
from app.machine.supervise import ChildProcess, ProcessError, Supervisor, last_error, rotate, rotation
from tests.machine.test_supervise import SUPERVISOR_PROCESS
from tests.support.faulty_proxy import until
from tests.support.processes import alive, free_ports
from tests.support.small_filesystem import fill, small_filesystem

PRINT_PID = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
SERVE = (
    "import http.server as h, os; print(os.getpid(), flush=True)\n"
    "h.HTTPServer(('127.0.0.1', {port}), h.SimpleHTTPRequestHandler).serve_forever()"
)
REPORT = """
import asyncio, os
from app.base.loop import LivenessReporter
async def main():
    print(os.getpid(), flush=True)
    async with LivenessReporter(os.environ["NOTIFY_SOCKET"]):
        await asyncio.sleep({seconds})
        print("has reported", flush=True)
        {then}
asyncio.run(main())
"""
IDLE = "await asyncio.sleep(600)"
DIE_TWICE = """
import pathlib, sys
deaths = pathlib.Path({path!r})
count = len(deaths.read_text()) if deaths.exists() else 0
deaths.write_text("x" * (count + 1))
if count < 2:
    sys.exit("not yet")
"""


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(tmp_path, stop_seconds=0.5, hang_seconds=2)
    yield supervisor
    await supervisor.stop()


def child(code: str, *, url: str = "") -> ChildProcess:
    env = {"PYTHONUNBUFFERED": "1"}
    return ChildProcess(name="child", argv=(sys.executable, "-c", code), env=env, ready=url, alive=url)


async def pids(log: Path, count: int) -> list[int]:
    """Those that the child has logged, once there are so many."""
    await until(lambda: sum(map(str.isdigit, _lines(log))) >= count)
    return [int(line) for line in _lines(log) if line.isdigit()]


async def has_reported(log: Path) -> None:
    await until(lambda: "has reported" in _lines(log))


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


async def test_a_child_that_dies_while_it_starts_is_started_again(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    code = DIE_TWICE.format(path=str(tmp_path / "deaths")) + SERVE.format(port=port)
    await supervisor.start([child(code, url=f"http://127.0.0.1:{port}/")])
    await supervisor.ready()
    assert "child ended with exit code 1: not yet" in capfd.readouterr().err


async def test_the_signal_that_ends_each_start_is_named(supervisor: Supervisor) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    await supervisor.start([child(code, url="http://127.0.0.1:9/")])
    with pytest.raises(ProcessError, match=r"^child does not start: it was killed by SIGSEGV$"):
        await supervisor.ready()


async def test_a_child_that_hangs_is_restarted_and_one_that_refuses_is_not(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    refusing = child(SERVE.format(port=port), url=f"http://127.0.0.1:{port}/nothing-here")
    await supervisor.start([msgspec.structs.replace(refusing, ready="")])
    [hung] = await pids(tmp_path / "child.log", 1)
    await until(lambda: sum(" 404 " in line for line in _lines(tmp_path / "child.log")) > 6)  # one each 0.5 s
    assert alive(hung), "a status of 404 is an answer"
    os.kill(hung, signal.SIGSTOP)
    await until(lambda: not alive(hung))
    shown = list[str]()

    def is_shown() -> bool:
        shown.append(capfd.readouterr().err)
        return "child answered nothing for 2 s and was killed. Restarting" in "".join(shown)

    await until(is_shown)


async def test_a_child_that_never_answers_is_restarted_after_its_own_limit(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    silent = child(PRINT_PID, url="http://127.0.0.1:9/")
    limited = msgspec.structs.replace(silent, name="limited", start_seconds=3)
    await supervisor.start([silent, limited])
    [_, restarted] = await pids(tmp_path / "limited.log", 2)
    assert alive(restarted)
    shown = capfd.readouterr().err
    assert "limited answered nothing for 3 s and was killed" in shown
    assert "child answered" not in shown


@pytest.mark.parametrize("hangs", ["stopped", "in its event loop"])
async def test_a_child_without_a_port_that_gives_no_sign_of_life_is_restarted(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str], hangs: str
) -> None:
    seconds, then = (3, IDLE) if hangs == "stopped" else (1, "__import__('time').sleep(600)")
    code = REPORT.format(seconds=seconds, then=then)
    await supervisor.start([msgspec.structs.replace(child(code), reports=True)])
    [hung] = await pids(tmp_path / "child.log", 1)
    if hangs == "stopped":
        await has_reported(tmp_path / "child.log")
        assert alive(hung), "it reports"
        os.kill(hung, signal.SIGSTOP)
    [_, restarted] = await pids(tmp_path / "child.log", 2)
    assert restarted != hung
    assert "child gave no sign of life for 2 s and was killed. Restarting" in capfd.readouterr().err


async def test_a_supervisor_that_was_stopped_itself_kills_no_child(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.start([msgspec.structs.replace(child(REPORT.format(seconds=1, then=IDLE)), reports=True)])
    [pid] = await pids(tmp_path / "child.log", 1)
    await has_reported(tmp_path / "child.log")
    os.kill(pid, signal.SIGSTOP)  # as when the machine sleeps
    time.sleep(3)  # noqa: ASYNC251  the supervisor sleeps too
    os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(1.5)
    assert alive(pid)


async def test_a_supervisor_that_cannot_write_to_its_output_restarts_its_children(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISOR_PROCESS, str(tmp_path), PRINT_PID]
    full = os.open("/dev/full", os.O_WRONLY)
    supervisor = await asyncio.create_subprocess_exec(*command, stdout=full, stderr=full)
    os.close(full)
    try:
        for count in (1, 2, 3):
            pid = (await pids(tmp_path / "child.log", count))[-1]
            assert alive(pid)
            os.kill(pid, signal.SIGKILL)
        assert supervisor.returncode is None
    finally:
        supervisor.kill()
        await supervisor.wait()


def test_a_log_is_rotated_while_its_process_goes_on_writing(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as output:
        for number in range(1, 6):
            output.write(f"{number}\n".encode() * 10)
            rotate(log, 15, 2)
        output.write(b"last\n")
    copies = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert copies == {"x.log": ["last"], "x.log.1": ["5"] * 10, "x.log.2": ["4"] * 10}


def test_a_log_on_a_full_disk_is_emptied_though_it_cannot_be_copied(tmp_path: Path) -> None:
    with small_filesystem(tmp_path / "disk", 2) as directory:
        log = directory / "x.log"
        log.write_bytes(b"x" * (1 << 20))
        fill(directory)
        rotate(log, 1000, 3)
        assert {path.name for path in directory.iterdir()} == {"x.log", "filler"}
        assert log.stat().st_size == 0


async def test_the_logs_of_the_data_directory_stay_bounded(tmp_path: Path) -> None:
    logs = [tmp_path / "logs" / "api.log", tmp_path / "postgres" / "log", tmp_path / "runs" / "a" / "log"]
    async with rotation(tmp_path, max_bytes=1 << 20, keep=1):
        for log in logs:
            log.parent.mkdir(parents=True)
            log.write_bytes(b"x" * (1 << 20) + b"x")
        await until(lambda: not any(log.stat().st_size for log in logs))
    assert all(log.with_name(f"{log.name}.1").stat().st_size == (1 << 20) + 1 for log in logs)


def test_the_reason_of_a_death_is_found_in_a_log_that_was_rotated_meanwhile(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("Error: no bread\n")
    assert last_error(log, 1_000_000) == "no bread"
    assert last_error(tmp_path / "absent", 0) == "its log cannot be read: No such file or directory"


def test_the_kernel_says_how_many_processes_it_ended_for_lack_of_memory() -> None:
    found = supervise.kills()
    assert found is not None
    assert found >= 0
