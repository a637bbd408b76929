"""A child process: started in a group of its own with its output in a log file, and why it ended."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec

from app.liveness import UNRESPONSIVE
from app.machine import out_of_memory
from app.machine.logs import last_error, says_what_to_mend
from app.parent_death import end_with_parent

START_SECONDS = 120.0


class ChildProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process to keep alive."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ready: str = ""  # a URL that answers 200 once it is ready; "" if it has none
    alive: str = ""  # a URL that answers, whatever it says, unless the process hangs; "" if it has none
    starts_with: str = ""  # what it does before it is ready, if that takes long
    start_seconds: float = START_SECONDS  # the most until it is ready, and until its first sign of life
    reports: bool = False  # signs of life to NOTIFY_SOCKET, of which the supervisor sets the address


class StartedChild(msgspec.Struct, frozen=True):
    child: ChildProcess
    process: asyncio.subprocess.Process
    log: Path
    log_start: int  # byte offset of the output of this start
    oom_kills: int | None  # before it

    def signal(self, number: signal.Signals) -> None:
        """To the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):  # already gone
            os.killpg(self.process.pid, number)

    async def end(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL after some seconds."""
        if self.process.returncode is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):  # SIGKILL follows
                async with asyncio.timeout(seconds):
                    await self.process.wait()
        self.signal(signal.SIGKILL)  # with its child processes
        await self.process.wait()

    def cause_of_death(self) -> str:
        """What follows the name of the child in a sentence, after it has ended."""
        code = self.process.returncode or 0
        if code >= 0:
            return f"ended with exit code {code}: {self.last_error()}"
        if -code == UNRESPONSIVE:
            return f"did not respond, and its watchdog ended it; the log shows where (log: {self.log})"
        name = signal.Signals(-code).name
        return f"was killed by {name}{self._lack_of_memory() if name == 'SIGKILL' else ''}"

    def refused(self) -> bool:
        """It ended by itself and told people what to mend: another start would end the same."""
        return self.process.returncode == 1 and says_what_to_mend(self.log, self.log_start)

    def last_error(self) -> str:
        return f"{last_error(self.log, self.log_start)} (log: {self.log})"

    def _lack_of_memory(self) -> str:
        before, now = self.oom_kills, out_of_memory.kills()
        if before is None or now is None:
            return ", which may be the kernel's, for lack of memory"
        return ", and the kernel ended a process for lack of memory meanwhile" if now > before else ""


async def start_child(child: ChildProcess, logs: Path) -> StartedChild:
    """Raises OSError if the system lacks memory, processes or disk space for it, or there is no such program."""
    path = logs / f"{child.name}.log"
    with path.open("ab") as output:
        start = output.tell()
        process = await asyncio.create_subprocess_exec(
            *child.argv,
            env=child.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a group of its own, so that Ctrl-C reaches only the supervisor
            preexec_fn=end_with_parent,
        )
    return StartedChild(child, process, path, start, out_of_memory.kills())
