"""The `sage` command on a terminal, whose questions are answered."""

import asyncio
import fcntl
import os
import pty
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress

from tests.support.sage_command import SageCommand


async def dialog(shell: SageCommand, words: list[str], answers: Mapping[str, str]) -> tuple[int, str]:
    """The exit code, and all that the terminal showed. Each answer is typed once its question is seen."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", *words, "--url", shell.url),
        env={**os.environ, "SAGE_KEY": shell.api.client.headers["Authorization"].removeprefix("Bearer ")},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: _own_terminal(theirs),
    )
    os.close(theirs)
    seen = ""
    for question, answer in answers.items():
        while question not in seen:
            seen += (await asyncio.to_thread(os.read, ours, 10_000)).decode()
        os.write(ours, f"{answer}\n".encode())
    rest = asyncio.create_task(asyncio.to_thread(_read_all, ours))
    code = await process.wait()
    seen += (await rest).decode()
    os.close(ours)
    return code, seen


def _own_terminal(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _read_all(terminal: int) -> bytes:
    """Until its last process has ended."""
    parts = []
    with suppress(OSError):
        while part := os.read(terminal, 10_000):
            parts.append(part)
    return b"".join(parts)
