"""Environments of ours are served as OpenEnv's, with the same tasks and the same verdicts."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.agent.rollout import RolloutLimits
from app.base.values import Json, Policy, Stop, Trajectory
from app.sandbox.protocol import SessionLimits
from tests.support.listening_app import listening_app
from tests.worlds.openenv.solving import code_of, completion, drawn
from trainer.environment import Environment, Verdict
from trainer.rollouts.episode import gateway_of
from trainer.worlds.generated.gym import GymEnvironment
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.openenv.environment import OpenEnvWorld, load_openenv
from trainer.worlds.openenv.server import ServerOptions, create_server

LIMITS = RolloutLimits(turns=4, session=SessionLimits(cpu_seconds=60, wall_seconds=600))


@asynccontextmanager
async def served(environment: Environment, **options: Any) -> AsyncIterator[str]:
    app = create_server("office", environment, ServerOptions(**{"scenarios": 2, "limits": LIMITS, **options}))
    async with listening_app(app, ws="websockets-sansio", lifespan="on") as url:
        yield url


class RawClient:
    """Sends messages as OpenEnv's clients do, and returns the `data` of the replies."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def ask(self, kind: str, data: Mapping[str, Json] | None = None) -> Any:
        with suppress(ConnectionClosed):  # why it is refused may have come before
            await self.tell(kind, data)
        return await self.next()

    async def tell(self, kind: str, data: Mapping[str, Json] | None = None) -> None:
        await self.tell_text(json.dumps({"type": kind, "data": data or {}}))

    async def tell_text(self, text: str) -> None:
        await self._socket.send(text)

    async def next(self) -> Any:
        return json.loads(await self._socket.recv())["data"]

    async def call(self, tool: str, **arguments: Json) -> Any:
        return await self.ask("step", {"type": "call_tool", "tool_name": tool, "arguments": arguments})


@asynccontextmanager
async def connected(url: str, query: str = "") -> AsyncIterator[RawClient]:
    async with connect(f"ws{url.removeprefix('http')}/ws{query}", proxy=None) as socket:
        yield RawClient(socket)


async def verdict(world: OpenEnvWorld, answer: Json = None, stop: Stop = Stop.COMPLETED) -> Verdict:
    return await world.verify(
        Trajectory(task=world.task, policy=Policy(), profile="", turns=(), stop=stop, answer=answer)
    )


@pytest.mark.parametrize("environment", [OfficeEnvironment(), GymEnvironment()], ids=["office", "gym"])
async def test_our_client_solves_the_tasks_of_our_server(environment: Environment) -> None:
    async with served(environment) as url:
        client = load_openenv(url=url, tasks=15)
        scenarios = await asyncio.to_thread(client.scenarios, "train", 9, 0)
        solved = 0
        for scenario in scenarios:
            for task in scenario.tasks:
                placed = next(
                    each for each in (drawn(environment, seed) for seed in range(15))
                    if task.instruction.endswith(f"Task: {each.task.instruction}")
                )  # fmt: skip
                async with client.open(scenario, task) as world:
                    run = gateway_of(world, 50)
                    assert world.task == task
                    printed = await run("env.run_python", [], {"code": code_of(environment, placed)})
                    assert "Error" not in printed, printed
                    assert not (await verdict(world)).success
                    await run("env.run_python", [], {"code": completion(environment, placed)})
                    solved += (await verdict(world)).success
        assert solved == 9


async def test_the_answer_of_a_task_is_submitted_by_the_tool_for_it() -> None:
    environment = OfficeEnvironment()
    seed = next(each for each in range(0, 100, 5) if "result" in completion(environment, drawn(environment, each)))
    placed = drawn(environment, seed)
    async with served(environment) as url:
        client = load_openenv(url=url, submit="complete_task")
        [*scenarios] = await asyncio.to_thread(client.scenarios, "train", 99, 0)
        scenario, task = next(
            (scenario, task)
            for scenario in scenarios
            for task in scenario.tasks
            if task.instruction.endswith(f"Task: {placed.task.instruction}")
        )
        for right in (True, False):
            async with client.open(scenario, task) as world:
                assert world.catalog.names() == {"env": ["run_python"]}
                printed = await gateway_of(world, 50)("env.run_python", [], {"code": code_of(environment, placed)})
                answer = int(printed.rpartition("\n")[2])
                assert (await verdict(world, answer if right else answer + 1)).success is right


async def test_tasks_by_split_are_those_that_the_server_lists() -> None:
    environment = OfficeEnvironment()
    async with served(environment) as url:
        client = load_openenv(url=url, by="split", tasks=5)
        splits = {
            split: await asyncio.to_thread(client.scenarios, split, 9, 0)
            for split in ("train", "validation", "test")
        }
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/list_environments")).json() == ["office"]
            asked = {"split": "test", "start": 1, "stop": 3}
            listed = (await http.post("/office/task_range", json=asked)).json()["tasks"]
            assert (await http.post("/office/num_tasks", json={"split": "test"})).json() == {"num_tasks": 6}
            assert (await http.post("/shop/num_tasks", json={"split": "test"})).status_code == 404
            assert (await http.post("/office/task", json={"split": "test", "index": 6})).status_code == 400
            assert (await http.post("/office/task", json={"split": "dev"})).status_code == 400
    instructions = {
        split: {task.instruction.rpartition("Task: ")[2] for each in found for task in each.tasks}
        for split, found in splits.items()
    }
    assert [len(found) for found in instructions.values()] == [5, 5, 5]
    assert {each["instruction"] for each in listed} <= instructions["test"]
    assert not instructions["train"] & instructions["test"]


async def test_a_task_ends_with_its_last_call_at_the_latest() -> None:
    async with served(OfficeEnvironment()) as url, connected(url) as client:
        assert (await client.ask("reset", {"seed": 3}))["done"] is False
        for _ in range(3):
            result = await client.call("run_python", code="x = 1")
            assert (result["reward"], result["done"]) == (0.0, False)
        result = await client.call("run_python", code="x += 1\nprint(x)")
        assert result["observation"]["result"]["data"] == "Output:\n2"
        assert result["done"]
        assert result["metadata"] == {"success": False, "stop": "turn_limit"}
        assert "has ended" in (await client.call("run_python", code="1"))["message"]
        assert (await client.ask("reset", {"seed": 3}))["done"] is False
        assert (await client.ask("state"))["step_count"] == 0


async def test_what_a_client_sends_wrongly_is_refused_with_the_reason() -> None:
    async with served(OfficeEnvironment()) as url, connected(url) as client:
        assert "reset the environment first" in (await client.call("run_python", code="1"))["message"]
        assert (await client.ask("reset", {"split": "dev"}))["code"] == "VALIDATION_ERROR"
        assert "there is no task 99" in (await client.ask("reset", {"index": 99}))["message"]
        assert (await client.ask("restart"))["code"] == "UNKNOWN_TYPE"
        await client.tell_text('{"type": "step", "data": ' + '{"a": ' * 100_000)
        assert (await client.next())["code"] == "INVALID_JSON"
        assert (await client.ask("step", {"type": "move"}))["code"] == "VALIDATION_ERROR"
        await client.ask("reset", {"index": 0})
        errors = [
            (await client.call("walk"))["observation"]["error"]["error_type"],
            (await client.call("run_python", source="1"))["observation"]["error"]["error_type"],
            (await client.call("run_python", code=1))["observation"]["error"]["error_type"],
        ]
        assert errors == ["tool_not_found", "invalid_args", "invalid_args"]
        raised = await client.call("run_python", code="1 / 0")
        assert "ZeroDivisionError" in raised["observation"]["result"]["data"]


async def test_a_session_ends_with_its_client_even_while_code_runs() -> None:
    async with served(OfficeEnvironment(), sessions=1) as url:
        async with connected(url) as client:
            await client.ask("reset", {"seed": 1})
            async with connected(url) as other:
                full = await other.ask("reset")
                assert (full["code"], full["max_sessions"]) == ("CAPACITY_REACHED", 1)
            await client.tell("step", {
                "type": "call_tool", "tool_name": "run_python",
                "arguments": {"code": "import time\ntime.sleep(300)"},
            })  # fmt: skip
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            while True:
                async with connected(url) as other:
                    if "code" not in await other.ask("reset", {"seed": 1}):
                        break


async def test_a_client_that_says_goodbye_is_disconnected() -> None:
    async with served(OfficeEnvironment()) as url, connected(url) as client:
        await client.tell("close")
        with pytest.raises(ConnectionClosed):
            await client.ask("state")


async def test_sessions_over_json_rpc_are_shared_with_a_connection() -> None:
    async with served(OfficeEnvironment(), sessions=1) as url, httpx.AsyncClient(base_url=url) as http:

        async def rpc(method: str, **params: Json) -> Any:
            request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            answer = (await http.post("/mcp", json=request)).json()
            assert answer["id"] == 7
            return answer.get("result") or answer["error"]

        session = (await rpc("openenv/session/create"))["session_id"]
        assert (await rpc("openenv/session/create"))["code"] == -32000
        assert [each["name"] for each in (await rpc("tools/list"))["tools"]] == ["run_python", "complete_task"]
        called = {"name": "run_python", "arguments": {"code": "print(6 * 7)"}}
        assert "reset" in (await rpc("tools/call", session_id=session, **called))["message"]
        async with connected(url, f"?session_id={session}") as client:
            await client.ask("reset", {"seed": 1})
            assert (await rpc("tools/call", session_id=session, **called))["data"] == "Output:\n42"
            assert (await client.ask("state"))["step_count"] == 1
            async with connected(url, f"?session_id={session}") as other:
                assert "already" in (await other.ask("state"))["message"]
            done = await rpc("tools/call", session_id=session, name="complete_task", arguments={"answer": -1})
            assert (done["meta"]["done"], done["meta"]["reward"] < 1) == (True, True)
        assert (await rpc("openenv/session/close", session_id=session))["closed"]
        assert (await rpc("tools/call", session_id=session, **called))["code"] == -32602
        assert (await rpc("tools/call", session_id=[], **called))["code"] == -32602
        assert (await rpc("prompts/list"))["code"] == -32601


async def test_a_session_without_a_connection_is_closed_after_a_while() -> None:
    async with served(OfficeEnvironment(), sessions=1, idle=0.2) as url, httpx.AsyncClient() as http:
        create = {"jsonrpc": "2.0", "method": "openenv/session/create"}
        assert "result" in (await http.post(f"{url}/mcp", json=create)).json()
        async with asyncio.timeout(10):
            while "result" not in (await http.post(f"{url}/mcp", json=create)).json():
                pass
