"""Reports a runner to the others and to the API, and frees the tasks of runners that died on this machine."""

import os
import socket
from collections.abc import Callable
from typing import Self

import structlog

from app.base.errors import HostError, SandboxError, first_line
from app.base.guarded_output import dropped_lines
from app.base.loop import Loop, faults_by_part, running_loops
from app.base.processes import is_gone, pid_space
from app.base.values import Json
from app.db import runners, tables
from app.db.database import TRANSIENT, Sessions
from app.db.runners import CLAIMS, ESSENTIAL, SANDBOX, RunnerReport
from app.engine.dispatch import Occupancy
from app.runner.crash_file import CrashFile
from app.runner.process_limits import MemoryWatch
from app.runner.runner import Runner, abandon_all
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 1.0
_SANDBOX_SECONDS = 15.0  # between two checks that a session opens


class RunnerPresence:
    """While entered, keeps the row of this runner up to date; it is removed at the end."""

    def __init__(
        self,
        sessions: Sessions,
        runner: Runner,
        sandbox: ForkedSandbox,
        memory: MemoryWatch,
        occupancy: Callable[[], Occupancy],
        prompt: str | None = None,
        crashes: CrashFile | None = None,
    ) -> None:
        """`occupancy` is of the model servers, by this process; `prompt` the hash of what it serves with;
        `crashes` tells how others ended.
        """
        self._crashes = crashes
        self._sessions, self._runner, self._sandbox = sessions, runner, sandbox
        self._memory, self._occupancy = memory, occupancy
        self._prompt, self._pid_space = prompt, pid_space()
        self._reports = Loop("report the runner", self._report, _REPORT_SECONDS, expected=TRANSIENT)
        self._checks = Loop("check the sandbox", self._check_sandbox, _SANDBOX_SECONDS)

    async def __aenter__(self) -> Self:
        self._reports.start()
        self._checks.start()
        return self

    def wake(self) -> None:
        """Report now."""
        self._reports.wake()

    async def __aexit__(self, *_: object) -> None:
        await self._checks.stop()
        await self._reports.stop()
        try:
            async with self._sessions.begin() as session:
                await runners.remove(session, self._runner.owner)
        except TRANSIENT as error:
            log.warning("the runner is listed until others notice its end", cause=first_line(error))

    async def _report(self) -> None:
        busy, loops = self._occupancy(), running_loops()
        faults = self._faults()
        report = RunnerReport(
            id=self._runner.owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_space=self._pid_space,
            in_flight=self._runner.running,
            capacity=self._runner.capacity,
            memory_bytes=self._memory.used,
            generating=busy.in_flight,
            waiting=busy.waiting,
            sandbox=self._sandbox.describe(),
            prompt=self._prompt,
            draining=self._runner.draining,
            error="; ".join(faults[part] for part in ESSENTIAL if part in faults) or None,
            faults=faults,
            loop_failures=sum(each.failed for each in loops),
            loop_restarts=sum(each.restarts for each in loops),
            dropped_lines=dropped_lines(),
        )
        async with self._sessions.begin() as session:
            await runners.report(session, report)
            neighbours = await runners.others_in(session, self._pid_space, self._runner.owner)
        for each in neighbours:
            if self._pid_space and is_gone(each.pid):
                await self._bury(each)

    def _faults(self) -> dict[str, str]:
        faults = faults_by_part() | self._runner.faults
        if not self._runner.answers():
            faults.setdefault(CLAIMS, "no model server answers")
        return faults

    async def _bury(self, dead: tables.RunnerProcess) -> None:
        killed = self._crashes is None or not self._crashes.ended_by_itself(dead.id)
        async with self._sessions.begin() as session:
            freed = await abandon_all(session, dead.id, killed=killed)
            await runners.remove(session, dead.id)
        log.warning("a runner died", runner=dead.id, killed=killed, tasks=[str(task_id) for task_id in freed])

    async def _check_sandbox(self) -> float | None:
        """While it fails, the runner claims nothing. Return the seconds until the next check."""
        try:
            session = await self._sandbox.open({}, _no_calls, SessionLimits())
            await session.close()
        except SandboxError as error:
            self._runner.faults[SANDBOX] = str(error)
            return _REPORT_SECONDS
        self._runner.faults.pop(SANDBOX, None)
        return None


async def _no_calls(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:  # noqa: ARG001
    raise HostError("PermissionError", f"{api}: calls are not possible in a readiness check")
