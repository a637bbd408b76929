"""The host's end of one session: a run of code, what it printed and used in all of its processes together, and
the processes of offered skills, opened at the first call. Counts, answers calls, enforces limits and kills.
"""

import asyncio
import base64
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import msgspec

from app.base.errors import HostError, SandboxError
from app.base.values import Json, SkillCall, Use
from app.sandbox.confined_process import (
    CallMessage,
    ConfinedProcess,
    DiedError,
    DoneMessage,
    LoadedMessage,
    OutputMessage,
    RaisedMessage,
    ReturnedMessage,
    SessionMessage,
    SkillEnd,
    SkillMessage,
    UnusableSkillError,
    ViolationError,
)
from app.sandbox.protocol import (
    Answer,
    EnteredSkill,
    Function,
    HostCall,
    Observation,
    RefusalError,
    RunStop,
    SessionLimits,
    running,
)
from app.sandbox.wire import readable

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


_MAX_RECORDS = 500  # calls of skills in one run that are recorded one by one
_MAX_OPENED = 50  # processes in one run
_RECORD_BYTES = 2_000  # of an argument in a record
_RECORD_ARGUMENTS = 50  # of a call in a record
_RECORDED_BYTES = 1 << 20  # of arguments in the records of one run, after which they have none
_READ_AT_ONCE = 1 << 16  # bytes of arguments, read without a thread

Spawn = Callable[[], Awaitable[ConfinedProcess]]
Serve = Callable[[ConfinedProcess, EnteredSkill], Awaitable[SessionMessage]]
"""Answers a process until it ends its run."""


class SkillProcesses:
    """Runs the calls of offered skills, and counts them in the run."""

    def __init__(self, functions: Sequence[Function], spawn: Spawn, setup: dict[str, Json]) -> None:
        self._functions = {function.name: function for function in functions}
        self._spawn = spawn
        self._setup = setup  # what all processes of the session have in common
        self._open: dict[str, tuple[ConfinedProcess, LoadedMessage]] = {}

    def close(self) -> None:
        for process, _ in self._open.values():
            process.close()
        self._open.clear()

    async def call(self, run: SessionRun, message: SkillMessage, serve: Serve, api_calls: int) -> list[Json]:
        """The answer to the caller: [kind, content, stop, [CPU seconds, characters left, time slept]].

        `api_calls` may be made. Raises DiedError if the run was killed.
        """
        function = self._functions.get(message.name)
        if function is None:
            return _refusal(run, message, "NameError", f"there is no skill {message.name[:100]!r}")
        before = run.cpu_of_skills()
        try:
            process, loaded = await self._process(run, function)
        except UnusableSkillError as error:
            return _refusal(run, message, "RuntimeError", f"{function.name} cannot be called: {error}")
        skill = EnteredSkill(function.name, *await _arguments(loaded, message))
        started, calls = time.perf_counter(), run.calls
        with run.inside(process):
            end = await self._relay(run, process, message, skill, serve, api_calls)
        run.entered[function.name] += 1
        if isinstance(end, ReturnedMessage) and run.calls > calls:
            run.returned[function.name] += 1
        if len(run.skill_calls) < _MAX_RECORDS:
            kept = _RECORD_ARGUMENTS if run.recorded_bytes < _RECORDED_BYTES else 0
            run.skill_calls.append(record := _record(skill, end, time.perf_counter() - started, kept))
            run.recorded_bytes += len(msgspec.json.encode(record.arguments))
        return _answer(end, [run.cpu_of_skills() - before, run.chars_left, end.slept])

    async def _relay(
        self,
        run: SessionRun,
        process: ConfinedProcess,
        message: SkillMessage,
        skill: EnteredSkill,
        serve: Serve,
        api_calls: int,
    ) -> SkillEnd:
        try:
            fields = (message.args, message.kwargs, run.cpu_left, run.chars_left, message.slept)
            await process.start("call", *fields, calls=api_calls)
            end = await serve(process, skill)
            process.pause()
            if not isinstance(end, ReturnedMessage | RaisedMessage):
                raise ViolationError("a message out of turn")
        except (DiedError, ViolationError):
            del self._open[skill.name]
            process.close()
            if run.killed:
                raise DiedError from None
            if run.overrun:
                return RaisedMessage("", f"TimeoutError: {run.overrun}", [], "cpu", message.slept)
            return RaisedMessage("", f"RuntimeError: the process of {skill.name} died", [], "error", message.slept)
        return end

    async def _process(self, run: SessionRun, function: Function) -> tuple[ConfinedProcess, LoadedMessage]:
        if function.name not in self._open:
            run.opened += 1
            if run.opened > _MAX_OPENED:
                raise UnusableSkillError("its process died too often")
            process = await self._spawn()
            try:
                with run.inside(process):
                    skill = {"skill": [function.name, function.source]}
                    self._open[function.name] = process, await process.load(self._setup | skill)
            except SandboxError:
                process.close()
                if run.killed:
                    raise DiedError from None
                if run.overrun:
                    raise UnusableSkillError(run.overrun) from None
                raise
            except BaseException:
                process.close()
                raise
        return self._open[function.name]


async def _arguments(loaded: LoadedMessage, message: SkillMessage) -> tuple[dict[str, Json], bool]:
    """The arguments by parameter, as JSON, and whether they were JSON."""
    bound = _bind(loaded.parameters, message.args, message.kwargs)
    if len(msgspec.json.encode(bound)) > _READ_AT_ONCE:
        return await asyncio.to_thread(_readable, bound)
    return _readable(bound)


def _readable(bound: dict[str, Json]) -> tuple[dict[str, Json], bool]:
    read = {name: readable(value) for name, value in bound.items()}
    return read, read == bound


def _bind(
    parameters: Sequence[tuple[str, str]], args: Sequence[Json], kwargs: Mapping[str, Json]
) -> dict[str, Json]:
    positional = [name for name, kind in parameters if kind == "positional"]
    bound = {**kwargs, **dict(zip(positional, args, strict=False))}
    rest = list(args[len(positional) :])
    return bound | {name: rest for name, kind in parameters if kind == "args"}


def _record(skill: EnteredSkill, end: SkillEnd, seconds: float, arguments_kept: int) -> SkillCall:
    first = islice(skill.arguments.items(), arguments_kept)
    arguments = {name[:100]: _cut(value) for name, value in first}
    return SkillCall(
        name=skill.name,
        turn=0,  # the session does not know it
        arguments=arguments,
        exact=skill.exact and arguments == skill.arguments,
        first_call=skill.calls[0] if skill.calls else None,
        calls=len(skill.calls),
        returned=isinstance(end, ReturnedMessage),
        error=end.error[:_RECORD_BYTES] if isinstance(end, RaisedMessage) else None,
        seconds=seconds,
    )


def _cut(value: Json) -> Json:
    text = msgspec.json.encode(value)
    if len(text) <= _RECORD_BYTES:
        return value
    return f"{text[:_RECORD_BYTES].decode(errors='ignore')} [{len(text) - _RECORD_BYTES:,} bytes cut]"


def _refusal(run: SessionRun, message: SkillMessage, kind: str, text: str) -> list[Json]:
    return ["raise", [kind, text], "error", [0.0, run.chars_left, message.slept]]


def _answer(end: SkillEnd, budget: list[Json]) -> list[Json]:
    if isinstance(end, ReturnedMessage):
        return ["returned", end.value, "ok", budget]
    if end.chain:
        return ["raised", end.chain, end.stop, budget]
    kind, _, text = end.error.partition(": ")
    return ["raise", [kind, text], end.stop, budget]


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
