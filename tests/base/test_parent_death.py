"""What a command starts ends with it, even if the command is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.processes import free_ports, is_open

SUITE = """
import sys, time
from pathlib import Path
from trainer.worlds.commands import _office_suite
with _office_suite(int(sys.argv[1]), 0.35, Path(sys.argv[2])):
    print("served", flush=True)
    time.sleep(60)
"""


def test_the_services_of_a_simulation_that_is_killed_leave_their_port_free(tmp_path: Path) -> None:
    [port] = free_ports(1)
    argv = [sys.executable, "-c", SUITE, str(port), str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "served\n"
        assert is_open(port)
        command.send_signal(signal.SIGKILL)
    while is_open(port):
        time.sleep(0.05)
