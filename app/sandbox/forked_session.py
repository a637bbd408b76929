"""The host's end of one session: counts, answers calls, enforces limits and kills."""

import asyncio
import re

from app.errors import HostError, SandboxError
from app.records import Json, Use
from app.sandbox.confined_process import ConfinedProcess
from app.sandbox.protocol import HostCall, Observation, RunStop, SessionLimits
from app.sandbox.reader import CallMessage, DoneMessage, OutputMessage, ReadyMessage, ViolationError

_REFUSALS = 100  # calls beyond the budget until the session is killed
_NOTICE_CHARS = 100  # the notice that the sandbox appends to truncated output
_MAX_USES = 1_000_000  # of one function in one run: more are not counted
_MESSAGE_CHARS = 5_000  # of a host error
_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_STOPS = {stop.value: stop for stop in (RunStop.OK, RunStop.ERROR, RunStop.CPU, RunStop.MEMORY)}


class ForkedSession:
    """Fulfils `Session`. One run at a time."""

    def __init__(
        self,
        process: ConfinedProcess,
        *,
        call: HostCall,
        limits: SessionLimits,
        apis: frozenset[str],
        offered: frozenset[str],
    ) -> None:
        self._process = process
        self._call = call
        self._limits = limits
        self._apis = apis
        self._offered = offered
        self._defined: set[str] = set()
        self._calls_left = limits.calls
        self._running: _Run | None = None

    @property
    def alive(self) -> bool:
        return self._process.alive

    async def prepare(self, setup: dict[str, Json]) -> None:
        """Load the offered functions. Raises SandboxError if one does not load."""
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                await self._process.start("setup", setup)
                answer = await self._process.next()
                self._process.pause()
        except (EOFError, OSError, TimeoutError, ViolationError) as error:
            raise SandboxError(f"a session could not be prepared: {error or 'it took too long'}") from error
        if not isinstance(answer, ReadyMessage):
            raise SandboxError(getattr(answer, "reason", "an offered function calls an API while it loads"))

    async def run(self, code: str) -> Observation:
        if not self.alive:
            raise SandboxError("this session has ended: open a new one")
        if self._running is not None:
            raise SandboxError("this session is already running code: one run at a time")
        if len(code) > self._limits.frame_bytes // 12:  # a character takes up to 12 bytes as JSON
            return Observation(stdout="", error="SyntaxError: the code is too long", stop=RunStop.ERROR)
        self._defined.update(_DEFINED.findall(code))
        run = self._running = _Run(self._process, self._limits)
        try:
            await self._drive(run, code)
        except BaseException:
            run.alive = False
            raise
        finally:
            self._running = None
            run.watch.cancel()
            if not run.alive:
                await self.close()
        return run.observation()

    async def close(self) -> None:
        """Kill the process."""
        await self._process.close()

    async def _drive(self, run: "_Run", code: str) -> None:
        """Drive a run until it ends for any reason."""
        clock = asyncio.timeout(self._limits.wall_seconds)
        try:
            async with clock:
                await self._process.start("run", code, calls=self._calls_left + _REFUSALS)
                done = await self._serve(run)
                self._process.pause()
                run.finish(done, self._uses(done))
        except TimeoutError:
            if not clock.expired():
                raise  # raised by a host call
            run.end(RunStop.WALL, f"it took more than {self._limits.wall_seconds:g} s")
        except (EOFError, ConnectionError):
            run.end(run.killed or RunStop.CRASH, run.why)
        except ViolationError as error:
            run.end(RunStop.CRASH, f"it broke the protocol ({error})")

    async def _serve(self, run: "_Run") -> DoneMessage:
        while True:
            message = await self._process.next()
            match message:
                case OutputMessage(text=text):
                    run.print(text)
                case CallMessage():
                    await self._process.send(await self._answer(run, message))
                case DoneMessage():
                    return message
                case _:
                    raise ViolationError("a message out of turn")

    async def _answer(self, run: "_Run", call: CallMessage) -> list[Json]:
        """["result", value], or ["raise", kind, message]."""
        if self._calls_left <= 0:
            run.refuse()
            return ["raise", "RuntimeError", f"the budget of {self._limits.calls} API calls is spent"]
        if call.api not in self._apis:
            return ["raise", "AttributeError", f"there is no {call.api[:100]!r}"]
        self._calls_left -= 1
        run.calls += 1
        try:
            result = await self._call(call.api, call.args, call.kwargs)
        except HostError as error:
            return ["raise", error.kind[:100], error.message[:_MESSAGE_CHARS]]
        try:
            return ["result", await self._process.copy(result)]
        except (TypeError, ValueError) as error:
            return ["raise", "ValueError", f"the answer of {call.api} cannot be passed on: {error}"]

    def _uses(self, done: DoneMessage) -> tuple[Use, ...]:
        """Only plausible uses: of functions that were offered, or that the code sent defines."""
        uses = {}
        for name, inherited, calls, returned in done.uses:
            if name in (self._offered if inherited else self._defined) and 0 <= returned <= calls:
                counted = min(calls, _MAX_USES), min(returned, _MAX_USES)
                uses[name, inherited] = Use(name, inherited, *counted)
        return tuple(uses.values())


class _Run:
    """The state of the run in progress."""

    def __init__(self, process: ConfinedProcess, limits: SessionLimits) -> None:
        self.alive = True
        self.calls = 0
        self.killed: RunStop | None = None
        self.why = "the process died"
        self._process = process
        self._limits = limits
        self._refused = 0
        self._printed: list[str] = []
        self._chars_left = limits.output_chars + _NOTICE_CHARS
        self._stop = RunStop.OK
        self._error: str | None = None
        self._uses: tuple[Use, ...] = ()
        self.watch = asyncio.get_running_loop().call_later(self._cpu_left(), self._check_cpu)

    def print(self, text: str) -> None:
        if len(text) > self._chars_left:
            raise ViolationError("more output than allowed")
        self._chars_left -= len(text)
        self._printed.append(text)

    def refuse(self) -> None:
        self._refused += 1
        if self._refused > _REFUSALS:
            self._kill(RunStop.CALLS, "it kept calling after its budget was spent")

    def finish(self, done: DoneMessage, uses: tuple[Use, ...]) -> None:
        if done.stop not in _STOPS:
            raise ViolationError("an unknown stop")
        self._stop = RunStop.CALLS if self._refused else _STOPS[done.stop]
        self._error = done.error
        self._uses = uses

    def end(self, stop: RunStop, why: str) -> None:
        """End the run together with its session."""
        self.alive = False
        self._stop = stop
        self._error = f"The session was ended ({stop}): {why}. Its variables are lost."

    def observation(self) -> Observation:
        return Observation(
            stdout="".join(self._printed),
            error=self._error,
            stop=self._stop,
            alive=self.alive,
            calls=self.calls,
            uses=self._uses,
            cpu_ms=self._process.cpu_seconds() * 1000,
        )

    def _cpu_left(self) -> float:
        session = self._limits.session_cpu_seconds - self._process.fork.cpu_seconds()
        return min(session, 2 * self._limits.cpu_seconds - self._process.cpu_seconds())

    def _check_cpu(self) -> None:
        """A single thread uses no more CPU time than wall time, so the next check can wait for the remainder."""
        left = self._cpu_left()
        if left > 0:
            self.watch = asyncio.get_running_loop().call_later(left + 0.01, self._check_cpu)
        elif self._process.cpu_seconds() >= 2 * self._limits.cpu_seconds:
            self._kill(
                RunStop.CPU, f"it used {2 * self._limits.cpu_seconds:g} s of CPU time and could not be interrupted"
            )
        else:
            self._kill(RunStop.CPU, f"it used all {self._limits.session_cpu_seconds:g} s of CPU time of a session")

    def _kill(self, stop: RunStop, why: str) -> None:
        self.killed, self.why = stop, why
        self._process.fork.kill()
