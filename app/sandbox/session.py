"""The processes of a session's offered skills: opened at the first call, closed with the session."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice

import msgspec

from app.errors import SandboxError
from app.records import Json, SkillCall
from app.sandbox.confined_process import ConfinedProcess, DiedError, UnusableSkillError
from app.sandbox.protocol import EnteredSkill, Function
from app.sandbox.reader import (
    LoadedMessage,
    RaisedMessage,
    ReturnedMessage,
    SessionMessage,
    SkillEnd,
    SkillMessage,
    ViolationError,
)
from app.sandbox.session_run import SessionRun
from app.sandbox.values import readable

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
