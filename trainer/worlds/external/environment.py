"""Worlds of other packages as environments: their tasks, their tools as APIs, and their own judgement.

Each package has a Python environment of its own, which `sage worlds install` makes, and a host there that serves
its tasks ([hosts/host.py]). Tools become operations of OpenAPI documents, so for the agent they are like those of
any server.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from random import Random
from typing import Final, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import httpx
import msgspec

from app.apis.approvals.gate import ApprovalDecision, ApprovalGate, ApprovalWantedError
from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog, Operation
from app.apis.documents.protocols import parse_document
from app.base.errors import InvalidError, WorldError
from app.base.values import Call, Json, Stop, Task, Trajectory
from app.projects.settings import ApprovalRules
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.external.processes import HostCommand, RefusedCallError, WorldPool, WorldProcess

_SET: Final = 3  # tasks of a scenario, at most
_NOW: Final = datetime(2026, 3, 2, 9, tzinfo=UTC)  # of worlds without a clock
_VALIDATION: Final = 5  # one scenario in so many of the training, where the package has no such split
_DEFINITIONS: Final = "#/$defs/"


class ExternalTask(msgspec.Struct, frozen=True):
    """A task of a package, by its own name."""

    id: str
    instruction: str
    split: Split
    family: str
    apps: str  # the key of the apps that it may call
    changes: int | None = None  # calls that may change something, at most; None: no limit


class ExternalOperation(msgspec.Struct, frozen=True):
    """A tool. `parameters` and `returns` are JSON schemas; references in them are to their own `$defs`."""

    name: str
    description: str
    parameters: dict[str, Json]
    returns: dict[str, Json] = {}
    safe: bool = False


class ExternalApp(msgspec.Struct, frozen=True):
    name: str
    description: str
    operations: tuple[ExternalOperation, ...]


class Reference(msgspec.Struct, frozen=True):
    """The calls that reach a goal, by operation, and the answer that belongs to it."""

    instruction: str
    calls: tuple[tuple[str, dict[str, Json]], ...]
    answer: str


class WorldProgram(msgspec.Struct, frozen=True):
    """Python that does a task: a function, and a call of it. The `careless` function forgets something."""

    app: str
    name: str
    function: str
    careless: str
    call: str


class UnattendedGate(ApprovalGate):
    """Refuses what waits for a person."""

    async def refusal(self, operation: Operation, call: Call, url: str) -> str | None:
        try:
            return await super().refusal(operation, call, url)
        except ApprovalWantedError as wanted:
            asked = wanted.request
            return ApprovalDecision(seq=asked.seq, digest=asked.digest, state="expired").refusal(asked.api)


@dataclass(frozen=True)
class ExternalWorld:
    """One task in a process of its package. Implements `World` and `OpensGateway`."""

    task: Task
    catalog: Catalog
    client: httpx.AsyncClient
    now: datetime
    process: WorldProcess
    number: int
    changes: int | None = None

    def open_gateway(self, max_calls: int) -> Gateway:
        """With the rules that a project would set, and nobody who approves more than these permit."""
        approvals = None
        if self.changes is not None:
            rules = ApprovalRules(max_writes=self.changes) if self.changes else ApprovalRules(default="write")
            approvals = UnattendedGate(rules)
        return Gateway(
            self.catalog,
            self.client,
            instruction=self.task.instruction,
            approvals=approvals,
            max_calls=max_calls,
        )

    async def verify(self, trajectory: Trajectory) -> Verdict:
        completed = trajectory.stop is Stop.COMPLETED
        found = await self.process.ask("verify", world=self.number, answer=trajectory.answer, completed=completed)
        return msgspec.convert(found, Verdict)

    async def solve(self) -> Json:
        """Do the task by the package's reference solution. Its answer. Raises RefusedCallError without one."""
        return await self.process.ask("solve", world=self.number)

    async def program(self) -> WorldProgram:
        """As an agent would write it, where the world has one."""
        return msgspec.convert(await self.process.ask("program", world=self.number), WorldProgram)

    async def reference(self, goal: str) -> Reference:
        """How the package reaches a goal, where it says so."""
        return msgspec.convert(await self.process.ask("reference", world=self.number, goal=goal), Reference)


class ExternalEnvironment:
    """Implements `Environment`. The tasks are those of the package, so scenarios end where these do."""

    def __init__(self, command: HostCommand) -> None:
        self._pool = WorldPool(command)
        self.world = command.world
        self._catalogs: dict[str, Catalog] = {}

    @cached_property
    def tasks(self) -> Mapping[UUID, ExternalTask]:
        """Of all splits, by the ids that they have here."""
        found = msgspec.convert(self._pool.ask_now("tasks"), list[ExternalTask])
        return {uuid5(NAMESPACE_URL, f"{self.world} {each.id}"): each for each in found}

    @cached_property
    def _splits(self) -> Mapping[Split, list[Scenario]]:
        families: dict[tuple[Split, str], list[Task]] = defaultdict(list)
        for number, each in self.tasks.items():
            families[each.split, each.family].append(Task(number, each.instruction))
        splits: dict[Split, list[Scenario]] = {split: [] for split in get_args(Split)}
        for (split, family), tasks in families.items():
            splits[split] += [
                Scenario(f"{family} {start // _SET + 1}", family, 0, tuple(tasks[start : start + _SET]), family)
                for start in range(0, len(tasks), _SET)
            ]
        if not splits["validation"]:
            splits["validation"] = splits["train"][::_VALIDATION]
            del splits["train"][::_VALIDATION]
        return splits

    @property
    def splits(self) -> list[Split]:
        """Those with tasks: an exam has the split "test" alone."""
        return [split for split, found in self._splits.items() if found]

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """At most `count`: a package has no more than it has. Raises InvalidError for a split without tasks."""
        if split not in self.splits:
            raise InvalidError(
                f"{self.world} has no tasks of the split {split}, only of {', '.join(self.splits)}: it is for "
                "exams, so train and validate in another environment"
            )
        return Random(f"{self.world} {seed}").sample(found := self._splits[split], min(count, len(found)))

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[ExternalWorld]:
        del scenario  # the task determines everything
        known = self.tasks[task.id]
        async with self._pool.place() as process:
            catalog = await self._catalog(known.apps, process)
            opened = await process.ask("open", task=known.id)
            number = opened["world"]
            try:
                async with httpx.AsyncClient(transport=WorldTransport(process, number)) as client:
                    now = datetime.fromisoformat(opened["now"]) if opened["now"] else _NOW
                    yield ExternalWorld(task, catalog, client, now, process, number, known.changes)
            finally:
                with suppress(WorldError):  # it was lost before
                    await process.ask("close", world=number)

    async def _catalog(self, key: str, process: WorldProcess) -> Catalog:
        if key not in self._catalogs:
            apps = msgspec.convert(await process.ask("apps", key=key), list[ExternalApp])
            self._catalogs[key] = Catalog({each.name: parse_document(each.name, document(each)) for each in apps})
        return self._catalogs[key]


class WorldTransport(httpx.AsyncBaseTransport):
    """Carries the requests of a client to one world."""

    def __init__(self, process: WorldProcess, number: int) -> None:
        self._process = process
        self._number = number

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """400 for a call that the world refuses. Raises httpx.ReadError where the world is lost."""
        app, operation = request.url.host.replace("-", "_"), request.url.path.strip("/")
        given = await request.aread()
        arguments = msgspec.json.decode(given) if given else {}
        try:
            result = await self._process.ask(
                "call", world=self._number, app=app, operation=operation, arguments=arguments
            )
        except RefusedCallError as error:
            return _response(request, 400, {"message": str(error)})
        except WorldError as error:
            raise httpx.ReadError(str(error), request=request) from error
        return _response(request, 200, result)


def _response(request: httpx.Request, status: int, value: Json) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.Response(status, headers=headers, content=msgspec.json.encode(value), request=request)


def document(app: ExternalApp) -> dict[str, Json]:
    """The tools of an app as OpenAPI."""
    schemas: dict[str, Json] = {}
    paths = {f"/{each.name}": {"post": _operation(each, schemas)} for each in app.operations}
    return {
        "openapi": "3.1.0",
        "info": {"title": app.name, "description": app.description, "version": "1"},
        "servers": [{"url": f"http://{app.name.replace('_', '-')}"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(tool: ExternalOperation, schemas: dict[str, Json]) -> dict[str, Json]:
    summary, _, more = tool.description.strip().partition("\n")
    result = {"application/json": {"schema": _shared(tool.returns, tool.name, schemas)}}
    operation = {
        "operationId": tool.name,
        "summary": summary,
        "description": more.strip(),
        "responses": {"200": {"description": "", "content": result}},
        "x-safe": tool.safe,
    }
    if tool.parameters.get("properties"):
        body = {"application/json": {"schema": _shared(tool.parameters, tool.name, schemas)}}
        operation["requestBody"] = {"content": body, "required": True}
    return operation


def _shared(schema: Mapping[str, Json], owner: str, schemas: dict[str, Json]) -> Json:
    """The schema, with its own definitions among the document's, under the owner's name."""

    def moved(node: Json) -> Json:
        if isinstance(node, list):
            return [moved(each) for each in node]
        if not isinstance(node, Mapping):
            return node
        target = node.get("$ref")
        if isinstance(target, str) and target.startswith(_DEFINITIONS):
            return {**node, "$ref": f"#/components/schemas/{owner}.{target.removeprefix(_DEFINITIONS)}"}
        return {name: moved(each) for name, each in node.items()}

    own = {name: each for name, each in schema.items() if name != "$defs"}
    schemas |= {f"{owner}.{name}": moved(each) for name, each in schema.get("$defs", {}).items()}
    return moved(own)
