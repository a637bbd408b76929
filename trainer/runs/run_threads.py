"""The CPUs that training uses beside those that serve."""

import os

import torch

_SHARE = 2


def leave_cpus_to_serving() -> None:
    """Training uses half of the CPUs. Threads that wait for each other on busy CPUs cost more than they gain: an
    update with one thread too many took ten times as long.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // _SHARE))
