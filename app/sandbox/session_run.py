"""One run of code in a session: what it printed and used, in all of its processes together."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.records import SkillCall, Use
from app.sandbox.confined_process import ConfinedProcess
from app.sandbox.protocol import Observation, RunStop, SessionLimits
from app.sandbox.reader import DoneMessage, ViolationError

REFUSALS = 100  # calls beyond the budget until the session is killed
_NOTICE_CHARS = 100  # the notice that the sandbox appends to truncated output
_LEAST_CPU_SECONDS = 0.01
_STOPS = {stop.value: stop for stop in (RunStop.OK, RunStop.ERROR, RunStop.CPU, RunStop.MEMORY)}


class SessionRun:
    """The state of the run in progress. `watch` must be cancelled at its end."""

    def __init__(self, process: ConfinedProcess, limits: SessionLimits, spent: float) -> None:
        self.alive = True
        self.calls = 0
        self.opened = 0  # processes of skills
        self.entered: Counter[str] = Counter()  # calls of skills
        self.returned: Counter[str] = Counter()  # those that returned, and called an API
        self.skill_calls: list[SkillCall] = []  # records of the first ones
        self.recorded_bytes = 0  # of arguments in them
        self.killed: RunStop | None = None
        self.why = "the process died"
        self.overrun = ""  # why the process of the latest skill was killed, if it was
        self._process = process
        self._inner: ConfinedProcess | None = None  # of the skill that is being called
        self._limits = limits
        self._spent_before = spent  # CPU seconds that skills used in earlier runs
        self._spent = 0.0  # and in this one
        self._cpu_limit = 2 * limits.cpu_seconds
        self._extended = False  # the limit, for the caller of a skill that was killed
        self._refused = 0
        self._printed: list[str] = []
        self._chars_left = limits.output_chars + _NOTICE_CHARS
        self._stop = RunStop.OK
        self._error: str | None = None
        self._claims: tuple[Use, ...] = ()
        self.watch = asyncio.get_running_loop().call_later(self._cpu_until_kill() / 2, self._check_cpu)

    @property
    def cpu_left(self) -> float:
        """Seconds of CPU time until the code is interrupted."""
        return max(self._limits.cpu_seconds - self.cpu_used(), _LEAST_CPU_SECONDS)

    @property
    def chars_left(self) -> int:
        """Characters of output until it is truncated; -1 if it was."""
        return max(self._chars_left - _NOTICE_CHARS, -1)

    @contextmanager
    def inside(self, process: ConfinedProcess) -> Iterator[None]:
        """The process of a skill works for this run."""
        self._inner, self.overrun = process, ""
        try:
            yield
        finally:
            self._inner = None
            self._spent += process.cpu_seconds()

    def print(self, text: str) -> None:
        if len(text) > self._chars_left:
            raise ViolationError("more output than allowed")
        self._chars_left -= len(text)
        self._printed.append(text)

    def refuse(self) -> None:
        self._refused += 1
        if self._refused > REFUSALS:
            self._kill(RunStop.CALLS, "it kept calling after its budget was spent")

    def finish(self, done: DoneMessage, claims: tuple[Use, ...]) -> None:
        if done.stop not in _STOPS:
            raise ViolationError("an unknown stop")
        self._stop = RunStop.CALLS if self._refused else _STOPS[done.stop]
        self._error = done.error
        self._claims = claims

    def end(self, stop: RunStop, why: str) -> None:
        """End the run together with its session."""
        self.alive = False
        self._stop = stop
        self._error = f"The session was ended ({stop}): {why}. Its variables are lost."

    def observation(self) -> Observation:
        """The result, with the uses that were counted and those that the code claims."""
        counted = (Use(name, True, calls, self.returned[name]) for name, calls in self.entered.items())
        return Observation(
            stdout="".join(self._printed),
            error=self._error,
            stop=self._stop,
            alive=self.alive,
            calls=self.calls,
            uses=(*counted, *self._claims),
            skill_calls=tuple(self.skill_calls),
            cpu_ms=self.cpu_used() * 1000,
        )

    def cpu_used(self) -> float:
        """Seconds of CPU time of all its processes."""
        return self._process.cpu_seconds() + self.cpu_of_skills()

    def cpu_of_skills(self) -> float:
        return self._spent + (0.0 if self._inner is None else self._inner.cpu_seconds())

    def _cpu_until_kill(self) -> float:
        others = self._spent_before + self.cpu_of_skills()
        session = self._limits.session_cpu_seconds - self._process.fork.cpu_seconds() - others
        return min(session, self._cpu_limit - self.cpu_used())

    def _check_cpu(self) -> None:
        """Kill what used too much, or check again before two processes at a time can use the remainder."""
        left = self._cpu_until_kill()
        overran = self.cpu_used() >= self._cpu_limit
        if left <= 0 and overran and self._inner is not None and not self._extended:
            self._extended = True
            self.overrun = f"the code used more than {self._limits.cpu_seconds:g} s of CPU time"
            self._inner.fork.kill()  # only the call of the skill fails, and its caller gets a little time
            left = self._limits.cpu_seconds
            self._cpu_limit = self.cpu_used() + left
        if left > 0:
            self.watch = asyncio.get_running_loop().call_later(left / 2 + 0.01, self._check_cpu)
        elif overran:
            self._kill(RunStop.CPU, f"it used {self._cpu_limit:g} s of CPU time and could not be interrupted")
        else:
            self._kill(RunStop.CPU, f"it used all {self._limits.session_cpu_seconds:g} s of CPU time of a session")

    def _kill(self, stop: RunStop, why: str) -> None:
        self.killed, self.why = stop, why
        for process in (self._process, self._inner):
            if process is not None:
                process.fork.kill()
