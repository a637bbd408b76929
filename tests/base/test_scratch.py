"""Directories for a while: those of dead processes are removed, and those of live ones stay."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.base.files import remove_left, scratch_directory
from app.base.loop import LivenessListener

HOLDER = """
import sys, time
from pathlib import Path
from app.base.files import scratch_directory
with scratch_directory(Path(sys.argv[1])) as directory:
    (directory / "weights").write_text("half")
    print(directory, flush=True)
    time.sleep(600)
"""
LISTENER = """
import time
from app.base.loop import LivenessListener
listener = LivenessListener()
print(listener.address, flush=True)
time.sleep(600)
"""


@contextmanager
def started(program: str, *arguments: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process, and the path that it prints."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_directory_ends_with_its_block(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        (directory / "weights").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_the_next_directory_removes_those_of_killed_processes_only(tmp_path: Path) -> None:
    with started(HOLDER, str(tmp_path)) as (_, live), started(HOLDER, str(tmp_path)) as (process, dead):
        killed(process)
        with scratch_directory(tmp_path) as ours:
            assert {*tmp_path.iterdir()} == {live, ours}
        remove_left(tmp_path)
        assert (live / "weights").read_text() == "half"
        assert not dead.exists()


def test_what_is_no_directory_of_a_dead_process_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kept").mkdir(parents=True)
    (tmp_path / ".partial-link").symlink_to(elsewhere)
    (tmp_path / ".partial-file").write_text("a dataset")
    (tmp_path / ".partial-young").mkdir()
    (tmp_path / ".partial-old").mkdir()
    os.utime(tmp_path / ".partial-old", (0, 0))
    remove_left(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {
        ".partial-link",
        ".partial-file",
        ".partial-young",
        "elsewhere",
    }
    assert (elsewhere / "kept").is_dir()


def test_a_supervisor_removes_the_sockets_of_killed_ones(tmp_path_factory: pytest.TempPathFactory) -> None:
    short = tmp_path_factory.mktemp("t")  # paths of sockets have 107 characters at most
    with (
        started(LISTENER, TMPDIR=str(short)) as (_, live),
        started(LISTENER, TMPDIR=str(short)) as (one, dead),
    ):
        killed(one)
        assert dead.exists()
        with started(LISTENER, TMPDIR=str(short)) as (_, next_one):
            assert {*short.iterdir()} == {live.parent, next_one.parent}


def test_a_listener_that_is_closed_leaves_nothing() -> None:
    listener = LivenessListener()
    assert Path(listener.address).exists()
    listener.close()
    assert not Path(listener.address).parent.exists()
