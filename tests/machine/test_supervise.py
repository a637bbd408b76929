"""The supervisor, with real child processes: a few lines of Python each."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from app.base.loop import UNRESPONSIVE
from app.machine.supervise import ChildProcess, ProcessError, Supervisor, last_error, rotate
from tests.support.ledger_project import until
from tests.support.processes import alive, free_ports, gone, is_open

PRINT_PID = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"  # one write: lines stay whole
SERVE = "import http.server as h; h.HTTPServer(('127.0.0.1', {port}), h.SimpleHTTPRequestHandler).serve_forever()"
READYZ_SERVER = """
import http.server as h, json, sys
asked = []
class Handler(h.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)  # at least 0.1 s apart
        runners = "no runner has reported for some seconds: start one" if len(asked) <= 28 else "ready"
        engine = "is down" if len(asked) <= 12 else "is slow" if len(asked) <= 20 else "ready"
        states = {{"database": "ready", "engine": engine, "runners": runners, "claims": runners}}
        report = {{"ready": False, "components": states}}
        self.send_response(200 if engine == runners == "ready" else 503)
        self.end_headers()
        self.wfile.write(json.dumps(report).encode())
h.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
SUPERVISOR_PROCESS = """
import asyncio, sys
from pathlib import Path
from app.machine.supervise import ChildProcess, Supervisor
async def main():
    supervisor = Supervisor(Path(sys.argv[1]))
    await supervisor.start([ChildProcess(name="child", argv=(sys.executable, "-c", sys.argv[2]), env={})])
    await supervisor.ready()
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(tmp_path, stop_seconds=0.5)
    yield supervisor
    await supervisor.stop()


def child(code: str, *, ready: str = "") -> ChildProcess:
    return ChildProcess(
        name="child", argv=(sys.executable, "-c", code), env={"PYTHONUNBUFFERED": "1"}, ready=ready
    )


async def lines(directory: Path, count: int) -> list[str]:
    """The output of the child, once it has `count` lines."""
    while True:
        log = directory / "child.log"
        written = log.read_text().splitlines() if log.exists() else []
        if len(written) >= count:
            return written
        await asyncio.sleep(0.02)


async def test_a_killed_child_is_restarted_with_a_message(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await supervisor.start([child(PRINT_PID)])
    await supervisor.ready()
    first = int((await lines(tmp_path, 1))[0])
    os.kill(first, signal.SIGKILL)
    second = int((await lines(tmp_path, 2))[1])
    assert alive(second)
    assert "child was killed by SIGKILL. Restarting in 1 s" in capfd.readouterr().err


async def test_a_child_that_its_own_watchdog_ends_is_restarted_with_the_reason(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await supervisor.start([child(PRINT_PID)])
    await supervisor.ready()
    os.kill(int((await lines(tmp_path, 1))[0]), UNRESPONSIVE)
    await lines(tmp_path, 2)
    reason = "child did not respond, and its watchdog ended it; the log shows where (log: "
    assert reason in capfd.readouterr().err


async def test_a_child_that_cannot_be_restarted_is_tried_again(
    supervisor: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program"
    program.symlink_to(sys.executable)
    argv = (str(program), "-c", PRINT_PID)
    await supervisor.start([ChildProcess(name="child", argv=argv, env={"PYTHONUNBUFFERED": "1"})])
    await supervisor.ready()
    first = int((await lines(tmp_path, 1))[0])
    program.unlink()
    os.kill(first, signal.SIGKILL)
    shown = ""
    while "child cannot be started" not in shown:
        await asyncio.sleep(0.05)
        shown += capfd.readouterr().err
    program.symlink_to(sys.executable)
    assert alive(int((await lines(tmp_path, 2))[1]))


async def test_stop_kills_children_that_ignore_sigterm_and_their_children(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    family = f"import os; {ignore} os.fork(); {PRINT_PID}"
    await supervisor.start([child(family)])
    await supervisor.ready()
    pids = [int(line) for line in await lines(tmp_path, 2)]
    await supervisor.stop()
    await gone(pids)


async def test_a_child_gets_sigterm_before_sigkill(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, stop_seconds=20)
    handler = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit())); "
    await supervisor.start([child(handler + "print('here'); time.sleep(600)")])
    await supervisor.ready()
    await lines(tmp_path, 1)
    await supervisor.stop()
    assert await lines(tmp_path, 2) == ["here", "bye"]


async def test_stop_ends_a_child_that_has_just_become_ready(supervisor: Supervisor) -> None:
    (port,) = free_ports(1)
    await supervisor.start([child(SERVE.format(port=port), ready=f"http://127.0.0.1:{port}/")])
    await supervisor.ready()
    await supervisor.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_child_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR_PROCESS, str(tmp_path), PRINT_PID
    )
    pid = int((await lines(tmp_path, 1))[0])
    supervisor.kill()
    await supervisor.wait()
    await gone([pid])


async def test_the_error_of_a_child_that_dies_at_start_is_quoted(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("Error: of an earlier start\n")
    await supervisor.start([child("print('Error: no bread'); print('bye'); exit(3)", ready="http://127.0.0.1:9")])
    with pytest.raises(ProcessError, match=r"^child does not start: it ended with exit code 3: no bread \(log"):
        await supervisor.ready()


async def test_a_child_without_a_url_that_dies_is_not_waited_for_by_the_others(
    supervisor: Supervisor,
) -> None:
    (port,) = free_ports(1)
    waits = child("import time; time.sleep(60)", ready=f"http://127.0.0.1:{port}/readyz")
    dies = msgspec.structs.replace(child("print('Error: install libseccomp2'); exit(1)"), name="runner-1")
    await supervisor.start([waits, dies])
    with pytest.raises(ProcessError, match=r"^runner-1 does not start: install libseccomp2"):
        await supervisor.ready()


async def test_a_child_that_does_not_get_ready_fails_with_its_last_response(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, stop_seconds=0.5)
    (port,) = free_ports(1)
    slow = child(SERVE.format(port=port), ready=f"http://127.0.0.1:{port}/nothing-here")
    await supervisor.start([msgspec.structs.replace(slow, start_seconds=2)])
    await until(lambda: is_open(port))
    with pytest.raises(ProcessError, match=r"child is not ready after 2 s: .*404 [^\n]*$"):
        await supervisor.ready()
    await supervisor.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_what_a_slow_child_waits_for_is_reported_and_again_when_it_changes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(tmp_path, stop_seconds=0.5, quiet_seconds=0.6)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/readyz"
    slow = child(READYZ_SERVER.format(port=port), ready=url)
    await supervisor.start([msgspec.structs.replace(slow, starts_with="loading seed, 7 MB")])
    await supervisor.ready()
    await supervisor.stop()
    none = "runners, claims: no runner has reported for some seconds: start one"
    waits = f"waiting for child (loading seed, 7 MB): {url}: 503"
    expected = [f"{waits} engine: is {how}; {none}" for how in ("down", "slow")]
    told = [line for line in capfd.readouterr().out.splitlines() if " 503 " in line or "runners" in line]
    assert told == [*expected, "waiting for the runners"]


async def test_a_child_is_ready_when_its_url_answers_200(supervisor: Supervisor) -> None:
    (port,) = free_ports(1)
    serve = f"import time; time.sleep(0.5); {SERVE.format(port=port)}"
    await supervisor.start([child(serve, ready=f"http://127.0.0.1:{port}/")])
    await supervisor.ready()
    with socket.create_connection(("127.0.0.1", port)):
        pass


def test_a_full_log_is_rotated_and_a_small_one_is_not(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    rotate(log, 3, 1)
    for text in ("old", "older than old", "newer still"):
        log.write_text(text)
        rotate(log, 3, 1)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"x.log": "", "x.log.1": "newer still"}
    log.write_text("abc")
    rotate(log, 3, 1)
    assert log.read_text() == "abc"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it logged nothing"),
        ("one\ntwo\n", "two"),
        ("Traceback\nValueError: bad\nleaving\n", "ValueError: bad"),
        ("Error: port taken\n", "port taken"),
    ],
)
def test_the_reason_is_the_last_error_or_the_last_line(tmp_path: Path, text: str, expected: str) -> None:
    log = tmp_path / "x.log"
    log.write_text("Error: before\n" + text)
    assert last_error(log, len("Error: before\n")) == expected


def test_the_supervisor_imports_nothing_slow() -> None:
    """It checks settings before anything slow is started."""
    heavy = "('torch', 'faiss', 'litestar')"
    code = f"import sys, app.machine.up; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
