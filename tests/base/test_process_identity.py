"""Whether a process is gone, as its neighbours see it."""

import os
import subprocess
import sys

from app.base.processes import is_gone


def test_a_process_is_gone_once_it_has_ended_even_if_its_parent_has_not_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert not is_gone(process.pid)
        process.stdin.write(b"\n")
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(process.pid)
        process.wait()
        assert is_gone(process.pid)
