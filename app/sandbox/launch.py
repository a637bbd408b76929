"""Launches the zygote: a new interpreter with an empty environment, in bubblewrap where that works."""

import asyncio
import json
import shutil
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from app.errors import SandboxError
from app.sandbox.fork_requests import ForkRequests

_START_SECONDS = 30.0
_PACKAGE = Path(__file__).parents[1]  # the directory of `app`
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from app.sandbox.zygote import main; main()"


class Zygote(NamedTuple):
    """A warm process, and what requests forks from it."""

    process: Process
    requests: ForkRequests
    python: str
    uid: int

    @property
    def alive(self) -> bool:
        return self.requests.open and self.process.returncode is None

    async def end(self) -> None:
        """Kill it, and with it every session."""
        self.requests.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


async def launch(bpf: bytes, *, bwrap: bool) -> Zygote:
    """Start a zygote. Raises SandboxError with the process's last output if it does not start."""
    command = [*(_bwrap() if bwrap else []), *_python()]
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise SandboxError(f"cannot start {command[0]}: {error}") from error
    ours.setblocking(False)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=DEVNULL,
                stderr=PIPE,
                env={"PYTHONHASHSEED": "0"},  # -I would ignore it
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the server, which ends its sessions itself
            )
        return await _handshake(process, ours, bpf)
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            raise SandboxError(f"cannot start {command[0]}: {error}") from error
        raise


def find_bwrap() -> str | None:
    return shutil.which("bwrap")


async def _handshake(process: Process, control: socket.socket, bpf: bytes) -> Zygote:
    loop = asyncio.get_running_loop()
    hello = b""
    try:
        with suppress(OSError):  # it has ended, or takes too long
            async with asyncio.timeout(_START_SECONDS):
                await loop.sock_sendall(control, bpf)
                hello = await loop.sock_recv(control, 1 << 12)
    finally:
        if not hello:
            with suppress(ProcessLookupError):
                process.kill()
    if not hello:
        _, stderr = await process.communicate()
        lines = stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise SandboxError(f"the sandbox did not start: {lines[-1]}")
    return Zygote(process, ForkRequests(control), **json.loads(hello))


def _python() -> list[str]:
    interpreter = str(Path(sys.executable).resolve())  # without the virtual environment and its packages
    return [interpreter, "-s", "-S", "-P", "-B", "-c", _BOOT, str(_PACKAGE.parent)]


def _bwrap() -> list[str]:
    paths = {"/usr", "/lib", "/lib64", sys.base_prefix, str(_PACKAGE)}
    binds = [word for path in sorted(paths) for word in ("--ro-bind-try", path, path)]
    return [
        find_bwrap() or "bwrap",
        "--unshare-all",
        *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session"),
        *binds,
        *("--chdir", "/"),
    ]
