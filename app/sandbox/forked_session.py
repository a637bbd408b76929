"""The host's end of one session: counts, answers calls, enforces limits and kills."""

import asyncio
import base64
import re
from functools import partial

from app.errors import HostError, SandboxError
from app.records import Json, Use
from app.sandbox.confined_process import ConfinedProcess, DiedError
from app.sandbox.protocol import (
    Answer,
    EnteredSkill,
    HostCall,
    Observation,
    RefusalError,
    RunStop,
    SessionLimits,
)
from app.sandbox.reader import (
    CallMessage,
    DoneMessage,
    OutputMessage,
    SessionMessage,
    SkillMessage,
    ViolationError,
)
from app.sandbox.run_clock import running
from app.sandbox.session_run import REFUSALS, SessionRun
from app.sandbox.skill_processes import SkillProcesses

_MESSAGE_CHARS = 5_000  # of a host error
_MAX_USES = 1_000_000  # calls of one function that are believed
DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


class ForkedSession:
    """Fulfils `Session`. One run at a time."""

    def __init__(
        self,
        process: ConfinedProcess,
        *,
        call: HostCall,
        limits: SessionLimits,
        apis: frozenset[str],
        skills: SkillProcesses,
    ) -> None:
        self._process = process
        self._call = call
        self._limits = limits
        self._apis = apis
        self._skills = skills
        self._cpu_of_skills = 0.0  # in the runs so far
        self._defined: set[str] = set()
        self._calls_left = limits.calls
        self._running: SessionRun | None = None

    @property
    def alive(self) -> bool:
        return self._process.alive

    async def run(self, code: str) -> Observation:
        if not self.alive:
            raise SandboxError("this session has ended: open a new one")
        if self._running is not None:
            raise SandboxError("this session is already running code: one run at a time")
        if len(code) > self._limits.frame_bytes // 12:  # a character takes up to 12 bytes as JSON
            return Observation(stdout="", error="SyntaxError: the code is too long", stop=RunStop.ERROR)
        self._defined.update(DEFINED.findall(code))
        run = self._running = SessionRun(self._process, self._limits, self._cpu_of_skills)
        try:
            await self._drive(run, code)
        except BaseException:
            run.alive = False
            raise
        finally:
            self._running = None
            run.watch.cancel()
            self._cpu_of_skills += run.cpu_of_skills()
            if not run.alive:
                await self.close()
        return run.observation()

    async def close(self) -> None:
        """Kill its processes."""
        self._process.close()
        self._skills.close()

    async def _drive(self, run: SessionRun, code: str) -> None:
        """Drive a run until it ends for any reason."""
        clock = asyncio.timeout(self._limits.wall_seconds)
        try:
            async with clock:
                with running(clock):
                    done = await self._done(run, code)
                self._process.pause()
                run.finish(done, self._claims(done))
        except TimeoutError:
            if not clock.expired():
                raise  # raised by a host call
            run.end(RunStop.WALL, f"it took more than {self._limits.wall_seconds:g} s")
        except DiedError:
            run.end(run.killed or RunStop.CRASH, run.why)
        except ViolationError as error:
            run.end(RunStop.CRASH, f"it broke the protocol ({error})")

    async def _done(self, run: SessionRun, code: str) -> DoneMessage:
        await self._process.start("run", code, calls=self._calls_left + REFUSALS)
        message = await self._serve(run, self._process)
        if not isinstance(message, DoneMessage):
            raise ViolationError("a message out of turn")
        return message

    async def _serve(
        self, run: SessionRun, process: ConfinedProcess, skill: EnteredSkill | None = None
    ) -> SessionMessage:
        """Answer the session's own process, or the one of a skill, until it sends another message than these."""
        while True:
            message = await process.next()
            match message:
                case OutputMessage(text=text):
                    run.print(text)
                case CallMessage():
                    await process.send(await self._answer(run, message, skill))
                case SkillMessage() if skill is None:
                    serve = partial(self._serve, run)
                    answer = await self._skills.call(run, message, serve, self._calls_left + REFUSALS)
                    await process.send(answer)
                case _:
                    return message

    async def _answer(self, run: SessionRun, call: CallMessage, skill: EnteredSkill | None) -> list[Json]:
        """["result", value] or ["bytes", base64], with status, headers and next page for a call that wants them,
        or ["raise", kind, message], with the response of a refused call.
        """
        if self._calls_left <= 0:
            run.refuse()
            return ["raise", "RuntimeError", f"the budget of {self._limits.calls} API calls is spent"]
        if call.api not in self._apis:
            return ["raise", "AttributeError", f"there is no {call.api[:100]!r}"]
        self._calls_left -= 1
        run.calls += 1
        try:
            answer = await self._call(call.api, call.args, call.kwargs, skill=skill)
        except HostError as error:
            refused = [await self._response(error)] if isinstance(error, RefusalError) else []
            return ["raise", error.kind[:100], error.message[:_MESSAGE_CHARS], *refused]
        whole = answer if isinstance(answer, Answer) else Answer(answer)
        if whole.remark and len(whole.remark) < run.chars_left:
            run.print(f"[{call.api}: {whole.remark}]\n")
        about = [whole.status, dict(whole.headers), whole.next_page] if call.whole else []
        if isinstance(whole.value, bytes):
            return ["bytes", base64.b64encode(whole.value).decode(), *about]
        try:
            return ["result", await self._process.copy(whole.value), *about]
        except (TypeError, ValueError) as error:
            return ["raise", "ValueError", f"the answer of {call.api} cannot be passed on: {error}"]

    async def _response(self, error: RefusalError) -> dict[str, Json]:
        response = error.response
        try:
            body = await self._process.copy(response.body)
        except (TypeError, ValueError):  # too deep, or too large
            body = None
        return {"status": response.status, "headers": response.headers, "body": body}

    def _claims(self, done: DoneMessage) -> tuple[Use, ...]:
        """Plausible claims about functions that the code defines."""
        claims = {
            name: Use(name, False, min(calls, _MAX_USES), min(returned, _MAX_USES))
            for name, calls, returned in done.uses
            if name in self._defined and 0 <= returned <= calls
        }
        return tuple(claims.values())
