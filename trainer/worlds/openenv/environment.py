"""Any server of OpenEnv as an environment: its tools as the API `env`, its rewards as verdicts.

A task is what a reset starts: with a seed, or as a task that the server lists. Its instruction is what the reset
shows. The reward of the last step decides.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from random import Random
from typing import Annotated, Any, Final, Literal, TypeVar, get_args
from urllib.parse import quote
from uuid import NAMESPACE_URL, UUID, uuid5

import httpx
import msgspec

from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.apis.naming import UniqueNames, operation_name
from app.base.errors import InvalidError, WorldError
from app.base.values import Json, Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.external.environment import ExternalApp, ExternalOperation, document
from trainer.worlds.external.processes import RefusedCallError
from trainer.worlds.openenv.connection import UNKNOWN, Connection, ListedTool, ServerAddress, ServerError, Step

APP: Final = "env"
_STEP: Final = "step"  # the operation of an environment without tools
_SET: Final = 3  # tasks of a scenario, at most
_PARTS: Final = 5  # of the seeds
_HELD_OUT: Final[Mapping[int, Split]] = {3: "validation", 4: "test"}  # of these parts
_CENT: Final = 100  # checks that a reward is counted as
_NOW: Final = datetime(2026, 3, 2, 9, tzinfo=UTC)
_GRACE: Final = 5.0  # seconds, for the server's limit to come first
_SPLITS: Final[tuple[Split, ...]] = get_args(Split)
T = TypeVar("T")
Positive = Annotated[float, msgspec.Meta(gt=0)]


class OpenEnvOptions(msgspec.Struct, frozen=True, kw_only=True):
    tasks: int
    by: Literal["seed", "split"]
    success: float
    submit: str
    sessions: int
    instruction: str


def load_openenv(  # noqa: PLR0913 - the options of the plug-in
    *,
    url: str,
    tasks: Annotated[int, msgspec.Meta(ge=_PARTS)] = 100,
    by: Literal["seed", "split"] = "seed",
    success: Positive = 1.0,
    submit: str = "",
    sessions: Annotated[int, msgspec.Meta(ge=1)] = 1,
    seconds: Positive = 120.0,
    instruction: str = "",
) -> "OpenEnvEnvironment":
    """The plug-in `openenv`.

    `by=seed`: the seeds below `tasks` are the tasks, a fifth of them for validation and a fifth for the test.
    `by=split`: the tasks that the server lists by split, at most `tasks` of each. `success` is the reward that is
    a success; `submit` the tool that gets the answer of a task, which the agent does not see; `sessions` as many
    as the server has; `seconds` limits each of its answers. The `instruction` stands before what a reset shows.
    """
    options = OpenEnvOptions(
        tasks=tasks, by=by, success=success, submit=submit, sessions=sessions, instruction=instruction
    )
    return OpenEnvEnvironment(ServerAddress.of(url, seconds), options)


class OfferedTools(msgspec.Struct, frozen=True):
    """What the agent may do: call tools, or take steps of the one kind that there is."""

    catalog: Catalog
    names: Mapping[str, str] = {}  # of the tools, by those of their operations; empty: there are none
    submit: str = ""  # the tool that gets the answer
    answer: str = ""  # its argument

    def action(self, operation: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        return call_of(self.names[operation], arguments) if self.names else dict(arguments)

    def submission(self, answer: Json) -> dict[str, Json]:
        return call_of(self.submit, {self.answer: answer} if self.answer else {})


@dataclass(frozen=True)
class OpenEnvWorld:
    """One task in a session of its own. Implements `World`."""

    task: Task
    tools: OfferedTools
    client: httpx.AsyncClient
    connection: Connection
    options: OpenEnvOptions
    now: datetime = _NOW

    @property
    def catalog(self) -> Catalog:
        return self.tools.catalog

    def open_gateway(self, max_calls: int) -> Gateway:
        """One that waits for as long as the server may take."""
        return Gateway(
            self.catalog,
            self.client,
            instruction=self.task.instruction,
            max_calls=max_calls,
            timeout=self.connection.seconds + _GRACE,
        )

    async def verify(self, trajectory: Trajectory) -> Verdict:
        """Raises WorldError if the session is lost."""
        await self.connection.settled()
        failures = []
        if self.tools.submit and trajectory.stop is Stop.COMPLETED and not self.connection.last.done:
            try:
                value_of(await self.connection.step(self.tools.submission(trajectory.answer)))
            except (ServerError, RefusedCallError) as error:
                failures.append(f"the answer was not taken: {error}")
        reward, wanted = float(self.connection.last.reward or 0), self.options.success
        if reward < wanted:
            failures.append(f"the last reward is {reward:g}, and {wanted:g} is a success")
        passed = _CENT if reward >= wanted else int(_CENT * max(0.0, reward) / wanted)
        return Verdict(passed, _CENT, tuple(failures))


class OpenEnvEnvironment:
    """Implements `Environment`. Not for more than one event loop at a time."""

    def __init__(self, address: ServerAddress, options: OpenEnvOptions) -> None:
        self._address, self._options = address, options
        self._places = asyncio.Semaphore(options.sessions)
        self._schema: dict[str, Json] | None = None
        self._tools: OfferedTools | None = None
        self._instructions: dict[UUID, str] = {}

    @cached_property
    def _tasks(self) -> Mapping[Split, Mapping[UUID, dict[str, Json]]]:
        """The arguments of the resets of each split, by the ids of its tasks."""
        most = self._options.tasks
        found = _by_seed(most) if self._options.by == "seed" else _now(_by_split(self._address, most))
        return {
            split: {uuid5(NAMESPACE_URL, f"{self._address.url} {each}"): each for each in resets}
            for split, resets in found.items()
        }

    @cached_property
    def _resets(self) -> Mapping[UUID, dict[str, Json]]:
        return {task: each for tasks in self._tasks.values() for task, each in tasks.items()}

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """At most `count`. New ones are reset once, to see their instructions. Raises WorldError."""
        ids, url = list(self._tasks[split]), self._address.url
        sets = [ids[start : start + _SET] for start in range(0, len(ids), _SET)]
        chosen = Random(f"{url} {seed}").sample(list(enumerate(sets, 1)), min(count, len(sets)))
        unseen = [task for _, tasks in chosen for task in tasks if task not in self._instructions]
        if unseen:
            _now(self._look_at(unseen))
        name = f"{url} {split}"
        return [
            Scenario(
                f"{name} {number}", name, 0, tuple(Task(task, self._instructions[task]) for task in tasks), url
            )
            for number, tasks in chosen
        ]

    async def _look_at(self, tasks: Sequence[UUID]) -> None:
        """Remember the instructions of tasks, all in one session."""
        async with self._session(tasks[0]) as connection:
            self._instructions[tasks[0]] = self._instruction(connection.last)
            for task in tasks[1:]:
                self._instructions[task] = self._instruction(await connection.reset(self._resets[task]))

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[OpenEnvWorld]:
        del scenario  # the task determines everything
        async with self._places, self._session(task.id) as connection:
            shown = msgspec.structs.replace(task, instruction=self._instruction(connection.last))
            tools = await self._offered(connection)
            async with httpx.AsyncClient(transport=StepTransport(connection, tools)) as client:
                yield OpenEnvWorld(shown, tools, client, connection, self._options)

    @asynccontextmanager
    async def _session(self, task: UUID) -> AsyncIterator[Connection]:
        await self._read_schema()  # before any connection: the address may be none that is allowed
        async with self._address.session(self._resets[task]) as connection:
            yield connection

    async def _read_schema(self) -> dict[str, Json]:
        """The JSON schemas of the server's actions and observations."""
        if self._schema is None:
            found = await self._address.ask("/schema")
            if not isinstance(found, dict) or not isinstance(found.get("action"), dict):
                raise WorldError(f"{self._address.url} has no schema of its actions: it speaks {UNKNOWN}")
            self._schema = found
        return self._schema

    async def _offered(self, connection: Connection) -> OfferedTools:
        if self._tools is None:
            schema = await self._read_schema()
            fields = schema["action"].get("properties", {}).keys() - {"metadata"}
            if fields and "tool_name" not in fields:
                self._tools = _one_step(schema, self._options)
            else:
                self._tools = _listed(await connection.list_tools(), self._options)
        return self._tools

    def _instruction(self, first: Step) -> str:
        """Raises InvalidError for a server that shows nothing."""
        shown = {name: each for name, each in first.observation.items() if each not in (None, "", [], {})}
        if len(shown) > 1:
            shown.pop("metadata", None)
        [*values] = shown.values()
        text = values[0] if len(values) == 1 and isinstance(values[0], str) else _as_text(shown)
        instruction = "\n".join(filter(None, (self._options.instruction, text)))
        if not instruction:
            raise InvalidError(f"{self._address.url} shows nothing at a reset: set the option instruction")
        return instruction


class StepTransport(httpx.AsyncBaseTransport):
    """Carries the requests of a client to one session."""

    def __init__(self, connection: Connection, tools: OfferedTools) -> None:
        self._connection, self._tools = connection, tools

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """400 for what the server refuses, 409 after the end of the task, 500 for what fails in it. Raises
        httpx.ReadError where the session is lost.
        """
        given = await request.aread()
        action = self._tools.action(request.url.path.strip("/"), msgspec.json.decode(given) if given else {})
        if self._connection.last.done:
            return httpx.Response(409, json={"message": "the task has ended"}, request=request)
        try:
            value = value_of(await self._connection.step(action))
        except RefusedCallError as error:
            return httpx.Response(400, json={"message": str(error)}, request=request)
        except ServerError as error:
            status = 400 if error.code == "VALIDATION_ERROR" else 500
            return httpx.Response(status, json={"message": str(error)}, request=request)
        except WorldError as error:
            raise httpx.ReadError(str(error), request=request) from error
        return httpx.Response(200, json=value, request=request)


def call_of(tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The action that calls a tool."""
    return {"type": "call_tool", "tool_name": tool, "arguments": arguments}


def value_of(step: Step) -> Json:
    """What code gets: the result of a tool, or the observation. Raises RefusedCallError."""
    observation = {name: each for name, each in step.observation.items() if name != "metadata" or each}
    if "tool_name" not in observation:
        return {**observation, "done": step.done}
    if isinstance(error := observation.get("error"), dict):
        raise RefusedCallError(str(error.get("message", "")))
    result = observation.get("result")
    if not isinstance(result, dict) or "content" not in result:
        return result
    text = "\n".join(each["text"] for each in result["content"] if isinstance(each.get("text"), str))
    if result.get("is_error"):
        raise RefusedCallError(text)
    return text if result.get("data") is None else result["data"]


def _one_step(schema: Mapping[str, Json], options: OpenEnvOptions) -> OfferedTools:
    """One operation, whose arguments are the fields of an action."""
    if options.submit:
        raise InvalidError(f"submit={options.submit}: the server has no tools")
    action = dict(schema["action"])
    action["properties"] = {name: each for name, each in action["properties"].items() if name != "metadata"}
    about = str(action.pop("description", "")) or "Act, and see what comes of it."
    returns = schema.get("observation", {})
    return OfferedTools(_catalog([ExternalOperation(_STEP, about, action, returns)]))


def _listed(tools: Sequence[ListedTool], options: OpenEnvOptions) -> OfferedTools:
    schemas = {each.name: each.input_schema for each in tools}
    submit = options.submit
    if submit and submit not in schemas:
        raise InvalidError(f"submit={submit}: the server has the tools {', '.join(schemas)}")
    names = UniqueNames()
    offered = {names.add(operation_name(each.name, "", "tool")): each for each in tools if each.name != submit}
    if not offered:
        raise WorldError("the server of OpenEnv offers no tools")
    operations = [ExternalOperation(name, each.description, each.input_schema) for name, each in offered.items()]
    answer = next(iter(schemas[submit].get("properties", {})), "") if submit else ""
    wire_names = {name: each.name for name, each in offered.items()}
    return OfferedTools(_catalog(operations), wire_names, submit, answer)


def _catalog(operations: Sequence[ExternalOperation]) -> Catalog:
    app = ExternalApp(APP, "The environment in which the task is.", tuple(operations))
    return Catalog({APP: parse_document(APP, document(app))})


def _by_seed(count: int) -> dict[Split, list[dict[str, Json]]]:
    """
    >>> {split: len(resets) for split, resets in _by_seed(12).items()}
    {'train': 8, 'validation': 2, 'test': 2}
    """
    found: dict[Split, list[dict[str, Json]]] = {split: [] for split in _SPLITS}
    for seed in range(count):
        found[_HELD_OUT.get(seed % _PARTS, "train")].append({"seed": seed})
    return found


_Names = Annotated[list[str], msgspec.Meta(min_length=1)]


class _ListedSplit(msgspec.Struct, frozen=True):
    name: str
    type: Split


class _Size(msgspec.Struct, frozen=True):
    num_tasks: int


async def _by_split(address: ServerAddress, most: int) -> dict[Split, list[dict[str, Json]]]:
    """The tasks of the server's own splits; without one for validation, a part of the training."""
    found: dict[Split, list[dict[str, Json]]] = {split: [] for split in _SPLITS}
    try:
        name = msgspec.convert(await address.ask("/list_environments"), _Names)[0]
        splits = msgspec.convert(await address.ask(f"/{quote(name)}/splits"), list[_ListedSplit])
        for split in splits:
            asked = await address.ask(f"/{quote(name)}/num_tasks", {"split": split.name})
            count = min(msgspec.convert(asked, _Size).num_tasks, most)
            found[split.type] += [{"split": split.name, "index": index} for index in range(count)]
    except (WorldError, msgspec.ValidationError) as error:
        raise InvalidError(f"by=split: {address.url} lists no tasks ({error})") from error
    if not found["validation"]:
        found["validation"] = found["train"][::_PARTS]
        del found["train"][::_PARTS]
    return found


def _as_text(observation: Mapping[str, Json]) -> str:
    return json.dumps(observation, ensure_ascii=False) if observation else ""


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Its result, also within an event loop, which has to wait."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
