"""Tasks of an environment of ours as OpenEnv has them: reset, tool calls, and a reward at the end.

A client works as our own agent does: Python that calls the apps of the world, in the sandbox and through the
gateway. So the tools are the same in every environment.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from random import Random, SystemRandom
from typing import Any, Final, NamedTuple, get_args
from uuid import uuid4

import msgspec

from app.agent.prompts import HOSTED
from app.agent.rollout import DivergedError, Repl, ResumeState, RolloutLimits
from app.apis.calls.gateway import Gateway
from app.apis.catalog import COMPLETE_TASK
from app.apis.listing import listed_apps
from app.base.errors import HostError, InvalidError
from app.base.values import Json, Policy, Stop, Task, Trajectory
from app.sandbox.protocol import RunStop, Sandbox
from trainer.environment import Environment, Scenario, Split, World
from trainer.rollouts.episode import gateway_of, of_world

SPLITS: Final[tuple[Split, ...]] = get_args(Split)
RUN_PYTHON: Final = "run_python"
_SEEDS: Final = 2**31
_TEXT: Final[Json] = {"type": "string"}
_KINDS: Final = ("string", "number", "boolean", "array", "object", "null")
TOOLS: Final[Mapping[str, dict[str, Json]]] = {
    RUN_PYTHON: {
        "name": RUN_PYTHON,
        "description": (
            "Run Python in a session that keeps its variables, imports and functions from call to call. The "
            "operations of the apps that the instruction lists are functions apis.<app>.<operation>(...), which "
            "take keyword arguments, return JSON as Python values, and raise when the app refuses. What there is "
            "say apis.api_docs.show_signatures(app_name=...), apis.api_docs.search(query=...) and "
            "apis.api_docs.show_api_doc(app_name=..., api_name=...). Returns what the code prints, and the "
            "traceback if it raises. The standard library is there; files, network and other packages are not."
        ),
        "input_schema": {"type": "object", "properties": {"code": _TEXT}, "required": ["code"]},
    },
    COMPLETE_TASK.name: {
        "name": COMPLETE_TASK.name,
        "description": "End the task, with the answer if it asks for one, as short as can be.",
        "input_schema": {
            "type": "object",
            "properties": {"answer": {"anyOf": [{"type": kind} for kind in _KINDS], "default": None}},
        },
    },
}


class RefusedError(Exception):
    """A request that cannot be answered. `kind` is OpenEnv's code of it."""

    def __init__(self, kind: str, message: str, **details: Json) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details


class ToolRefusedError(Exception):
    """A call that is an observation with an error. `kind` is OpenEnv's type of it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a reset or a call."""

    observation: dict[str, Json]
    reward: float | None = 0.0
    done: bool = False
    metadata: dict[str, Json] = {}


class ResetArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Which task: by its place among those listed of a split, or drawn by a seed."""

    split: Split = "train"
    index: int | None = None
    seed: int | None = None
    episode_id: str | None = None


class PlacedTask(NamedTuple):
    scenario: Scenario
    task: Task

    def described(self, split: Split, index: int) -> dict[str, Json]:
        scenario, task = self
        return {
            "id": str(task.id),
            "split": split,
            "index": index,
            "scenario": scenario.id,
            "instruction": task.instruction,
        }


class ServedTasks:
    """The tasks of an environment. Those of at most `most` scenarios of each split are listed."""

    def __init__(self, environment: Environment, most: int) -> None:
        self.environment = environment
        self._most = most

    @cached_property
    def listed(self) -> Mapping[Split, list[PlacedTask]]:
        """May take seconds at first."""
        drawn = {split: self.environment.scenarios(split, self._most, 0) for split in SPLITS}
        return {
            split: [PlacedTask(scenario, task) for scenario in scenarios for task in scenario.tasks]
            for split, scenarios in drawn.items()
        }

    def find(self, wanted: ResetArguments) -> PlacedTask:
        """Raises InvalidError for a task that does not exist."""
        if wanted.index is not None:
            return self.at(wanted.split, wanted.index)
        seed = SystemRandom().randrange(_SEEDS) if wanted.seed is None else wanted.seed
        for scenario in self.environment.scenarios(wanted.split, 1, seed):
            return PlacedTask(scenario, Random(seed).choice(scenario.tasks))
        raise InvalidError(f"the environment has no tasks in the split {wanted.split}")

    def at(self, split: Split, index: int) -> PlacedTask:
        """Raises InvalidError."""
        tasks = self.listed[split]
        if not 0 <= index < len(tasks):
            raise InvalidError(f"there is no task {index}: {len(tasks)} tasks of the split {split} are listed")
        return tasks[index]


@dataclass
class _Episode:
    """One task in progress."""

    scenario: Scenario
    world: World
    gateway: Gateway
    repl: Repl
    stack: AsyncExitStack
    id: str = field(default_factory=lambda: str(uuid4()))
    steps: int = 0
    reward: float | None = 0.0  # None: nobody can tell
    done: bool = False


class TaskSession:
    """The tasks of one client, one after the other. Requests wait for the one before."""

    def __init__(self, tasks: ServedTasks, sandbox: Sandbox, limits: RolloutLimits) -> None:
        self._tasks, self._sandbox, self._limits = tasks, sandbox, limits
        self._episode: _Episode | None = None
        self._lock = asyncio.Lock()

    async def reset(self, wanted: ResetArguments) -> Result:
        """Begin a task. The observation is its instruction, after the apps that there are.

        Raises InvalidError for an unknown task, WorldError for a world that cannot be set up.
        """
        async with self._lock:
            await self._end()
            scenario, task = self._tasks.find(wanted)
            async with AsyncExitStack() as stack:
                opened = stack.enter_async_context(self._tasks.environment.open(scenario, task))
                world = await of_world(opened, scenario)
                gateway = gateway_of(world, self._limits.calls)
                gateway.look_ups.chars = HOSTED.look_up_chars
                origin = ResumeState(now=world.now)
                repl = Repl(self._sandbox, gateway, self._limits.session, (), origin)
                stack.push_async_callback(repl.close)
                episode = _Episode(scenario, world, gateway, repl, stack.pop_all())
            episode.id = wanted.episode_id or episode.id
            self._episode = episode
            messages = HOSTED.opening(world.task, (), listed_apps(gateway.catalog))
            about = {"task": str(task.id), "scenario": scenario.id, "split": wanted.split}
            return Result(observation={"instruction": messages[-1].content}, metadata=about)

    async def call(self, tool: str, arguments: Mapping[str, Json]) -> Result:
        """The result of a tool. Raises RefusedError where no task is in progress, WorldError, SandboxError."""
        async with self._lock:
            episode = self._running()
            episode.steps += 1
            text = stop = error = None
            try:
                text, stop = await self._answer(episode, tool, arguments)
            except ToolRefusedError as refused:
                error = {"error_type": refused.kind, "message": str(refused)}
            if episode.gateway.completed:
                stop = Stop.COMPLETED
            elif stop is None and episode.steps >= self._limits.turns:
                stop = Stop.TURN_LIMIT
            about = {} if stop is None else await self._judge(episode, stop)
            result = None if text is None else tool_result(text)
            called = {"tool_name": tool, "result": result, "error": error, "metadata": {}}
            return Result(observation=called, reward=episode.reward, done=episode.done, metadata=about)

    async def _answer(
        self, episode: _Episode, tool: str, arguments: Mapping[str, Json]
    ) -> tuple[str, Stop | None]:
        """What the tool says, and why the task ends with it, if it does."""
        if tool not in TOOLS:
            raise ToolRefusedError("tool_not_found", f"there is no tool {tool}: there are {', '.join(TOOLS)}")
        _check(tool, arguments)
        if tool == RUN_PYTHON:
            return await self._run(episode, arguments["code"])
        return await _complete(episode, arguments), None

    async def _run(self, episode: _Episode, code: str) -> tuple[str, Stop | None]:
        gateway = episode.gateway
        try:
            observation, _ = await episode.repl.run(episode.steps - 1, code)
        except DivergedError as error:
            return str(error), Stop.IN_DOUBT
        stop = None
        if gateway.in_doubt is not None:
            stop = Stop.IN_DOUBT
        elif gateway.call_limit_hit or observation.stop is RunStop.CALLS:
            stop = Stop.CALL_LIMIT
        return HOSTED.observation(observation), stop

    async def _judge(self, episode: _Episode, stop: Stop) -> dict[str, Json]:
        episode.done, episode.reward = True, None
        trajectory = Trajectory(
            task=episode.world.task,
            policy=Policy(),
            profile=HOSTED.name,
            turns=(),
            stop=stop,
            answer=episode.gateway.answer,
        )
        verdict = await of_world(episode.world.verify(trajectory), episode.scenario)
        episode.reward = verdict.fraction if verdict.known else None
        return {"success": verdict.success if verdict.known else None, "stop": stop.value}

    def state(self) -> dict[str, Json]:
        episode = self._episode
        if episode is None:
            return {"episode_id": None, "step_count": 0}
        return {
            "episode_id": episode.id,
            "step_count": episode.steps,
            "scenario": episode.scenario.id,
            "done": episode.done,
            "reward": episode.reward,
        }

    def _running(self) -> _Episode:
        if self._episode is None:
            raise RefusedError("EXECUTION_ERROR", "no task is in progress: reset the environment first")
        if self._episode.done:
            raise RefusedError("EXECUTION_ERROR", "the task has ended: reset the environment for the next")
        return self._episode

    async def close(self) -> None:
        """End the task in progress, if any."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.stack.aclose()


async def _complete(episode: _Episode, arguments: Mapping[str, Json]) -> str:
    episode.gateway.turn = episode.steps - 1
    try:
        done: dict[str, Any] = await episode.gateway(COMPLETE_TASK.api, [], dict(arguments))
    except HostError as error:
        raise ToolRefusedError("execution_error", error.message) from error
    return str(done["message"])


def _check(tool: str, arguments: Mapping[str, Json]) -> None:
    """Raises ToolRefusedError for arguments that do not fit."""
    schema = TOOLS[tool]["input_schema"]
    unknown = sorted(arguments.keys() - schema["properties"].keys())
    if unknown:
        raise ToolRefusedError("invalid_args", f"{tool} has no argument {', '.join(unknown)}")
    if tool == RUN_PYTHON and not isinstance(arguments.get("code"), str):
        raise ToolRefusedError("invalid_args", f"{tool} needs the argument code, a text")


def tool_result(text: str) -> dict[str, Json]:
    """As FastMCP has it, whose clients OpenEnv's are."""
    return {
        "content": [{"type": "text", "text": text, "annotations": None, "meta": None}],
        "structured_content": {"result": text},
        "meta": None,
        "data": text,
        "is_error": False,
    }
