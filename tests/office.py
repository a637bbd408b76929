"""Plays a task of the office world here: real services, real gateway, the code in a thread of its own."""

import asyncio
import contextlib
import io
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from app.agent.action import code_of
from app.agent.compact import Compact
from app.records import Json, Policy, Stop, Task, Trajectory
from app.sandbox.gateway import Gateway
from app.sandbox.protocol import HostCall, HostError, Observation, RunStop
from trainer.environment import Scenario, Verdict
from trainer.environments.office.environment import OfficeEnvironment, OfficeWorld

MAX_TURNS = 8


class Player(Protocol):
    def next_turn(self, observations: list[str]) -> str: ...


class Played(msgspec.Struct, frozen=True):
    """What came of a task that was played."""

    verdict: Verdict
    messages: list[str]
    observations: list[str]
    calls: int

    @property
    def code(self) -> str:
        return "\n".join(self.messages)


async def play(
    environment: OfficeEnvironment,
    scenario: Scenario,
    task: Task,
    player: Callable[[OfficeWorld], Player],
    *,
    prelude: str = "",
) -> Played:
    """One rollout. `prelude` is the source of the skills that the player was offered."""
    async with environment.open(scenario, task) as world:
        gateway = Gateway(world.catalog, world.client, variables=world.task.variables)
        repl, chosen = ThreadRepl(gateway, prelude), player(world)
        messages: list[str] = []
        seen: list[str] = []
        while not gateway.completed and len(messages) < MAX_TURNS:
            messages.append(chosen.next_turn(seen))
            seen.append(Compact().observation(await repl.run(code_of(messages[-1]) or "")))
        verdict = await world.verify(ended(world.task, gateway.answer, completed=gateway.completed))
        return Played(verdict, messages, seen, len(gateway.take_calls()))


def ended(task: Task, answer: Json = None, *, completed: bool = True) -> Trajectory:
    """A trajectory of which only the end matters."""
    stop = Stop.COMPLETED if completed else Stop.TURN_LIMIT
    return Trajectory(task=task, policy=Policy(), profile="compact", turns=(), stop=stop, answer=answer)


class ThreadRepl:
    """Stands in for the sandbox where the code is our own: plain exec, calls go to the event loop and back."""

    def __init__(self, call: HostCall, prelude: str) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._names: dict[str, Any] = {"apis": _Apis(self._send)}
        exec(prelude, self._names)

    async def run(self, code: str) -> Observation:
        return await asyncio.to_thread(self._run, code)

    def _run(self, code: str) -> Observation:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<turn>", "exec"), self._names)
        except Exception:  # noqa: BLE001 - whatever the code raises is an observation
            return Observation(stdout=printed.getvalue(), error=traceback.format_exc(), stop=RunStop.ERROR)
        return Observation(stdout=printed.getvalue())

    def _send(self, api: str, args: tuple[Json, ...], kwargs: dict[str, Json]) -> Json:
        sent = asyncio.run_coroutine_threadsafe(self._call(api, list(args), kwargs), self._loop)
        try:
            return sent.result()
        except HostError as error:
            raise type(error.kind, (Exception,), {"__module__": "builtins"})(error.message) from None


class _Apis(SimpleNamespace):
    """`apis.<app>.<operation>(...)`."""

    def __init__(self, send: Callable[[str, tuple[Json, ...], dict[str, Json]], Json]) -> None:
        self._send = send

    def __getattr__(self, app: str) -> Any:
        send = self._send

        class App:
            def __getattr__(self, operation: str) -> Callable[..., Json]:
                return lambda *args, **kwargs: send(f"{app}.{operation}", args, kwargs)

        return App()
