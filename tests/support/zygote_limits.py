"""Resource limits of the sandbox's warm process, lowered so that it cannot fork."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from app.sandbox.forked_sandbox import ForkedSandbox


def zygote_pid(sandbox: ForkedSandbox) -> int:
    assert sandbox._zygote is not None
    return sandbox._zygote.process.pid


@contextmanager
def limited(sandbox: ForkedSandbox, limit: str = "nproc") -> Iterator[None]:
    set_limit(sandbox, limit, 1)
    try:
        yield
    finally:
        set_limit(sandbox, limit, 512)


def set_limit(sandbox: ForkedSandbox, limit: str, value: int) -> None:
    """Set a soft limit. It must be done by the user that the warm process runs as."""
    assert sandbox._zygote is not None
    user = sandbox._zygote.uid if os.getuid() == 0 else None
    command = ["prlimit", "--pid", str(zygote_pid(sandbox)), f"--{limit}={value}:"]
    subprocess.run(command, user=user, group=user, check=True)
