"""Processes that leave the cores to those who serve."""

import os
from contextlib import suppress
from pathlib import Path


def lower_priority(niceness: int) -> None:
    """Of this process and its children. Where the kernel groups processes by session, it is the group's priority
    that counts.
    """
    os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))
