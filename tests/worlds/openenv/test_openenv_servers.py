"""Servers of OpenEnv as environments: what they may do to a rollout, and what they cannot."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, WebSocket, get, websocket
from litestar.exceptions import WebSocketDisconnect

from app.agent.prompts import Compact
from app.agent.rollout import Agent
from app.apis.calls.gateway import Gateway
from app.base.errors import HostError, InvalidError, WorldError
from app.base.values import Json, Stop
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.listening_app import listening_app
from tests.support.processes import free_ports
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.worlds.openenv.test_served_tasks import LIMITS, verdict
from trainer.environment import open_environment
from trainer.rollouts.episode import EpisodeRunner, gateway_of
from trainer.worlds.openenv.environment import OpenEnvEnvironment, OpenEnvWorld, load_openenv

TOOLS = [
    {
        "name": "raise_by",
        "description": "Raise the tally.",
        "input_schema": {
            "type": "object",
            "properties": {"amount": {"$ref": "#/$defs/Amount"}},
            "required": ["amount"],
            "$defs": {"Amount": {"type": "integer"}},
        },
    },
    {"name": "tell", "description": "", "input_schema": {"type": "object", "properties": {"what": {}}}},
]
MOVE = {"properties": {"metadata": {"type": "object"}, "column": {"type": "integer"}}, "required": ["column"]}
Answer = Callable[[dict[str, Any]], Any]


class Tally:
    """A task: raise a number to that of the seed and tell it. Replies as servers of 0.10 do."""

    def __init__(self) -> None:
        self.wanted = self.value = 0

    def __call__(self, message: dict[str, Any]) -> Any:
        data = message["data"]
        if message["type"] == "reset":
            self.wanted, self.value = data["seed"], 0
            return observed({"goal": f"Raise the tally to {self.wanted}.", "metadata": {"seed": self.wanted}})
        if data["type"] == "list_tools":
            return observed({"tools": TOOLS, "metadata": {}})
        if data["tool_name"] == "tell":
            right = self.value == self.wanted == data["arguments"].get("what")
            return observed(called({"content": [{"type": "text", "text": "noted"}], "data": None}), right, True)
        if data["arguments"]["amount"] != 1:
            return observed(called(None, {"error_type": "execution_error", "message": "a tally is raised by 1"}))
        self.value += 1
        return observed(called({"content": [], "data": self.value}), 0.5)


def observed(observation: dict[str, Json], reward: float | None = None, done: bool = False) -> dict[str, Json]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def called(result: Json, error: Json = None) -> dict[str, Json]:
    return {"tool_name": "", "result": result, "error": error, "metadata": {}}


def failed(code: str, message: str = "no") -> dict[str, Json]:
    return {"type": "error", "data": {"code": code, "message": message}}


@asynccontextmanager
async def serving(new: Callable[[], Answer], action: Json = None) -> AsyncIterator[str]:
    """A server whose sessions are answered by what `new` makes. An exception closes the connection."""

    @get("/schema")
    async def schema() -> Any:
        return {"action": {"properties": {"tool_name": {}}} if action is None else action}

    @websocket("/ws")
    async def talk(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        answer = new()
        with suppress(WebSocketDisconnect, EOFError):
            while (message := json.loads(await socket.receive_text()))["type"] != "close":
                if (reply := answer(message)) is not None:
                    await socket.send_text(reply if isinstance(reply, str) else json.dumps(reply))
            return
        with suppress(RuntimeError, WebSocketDisconnect):
            await socket.close()

    app = Litestar([schema, talk], openapi_config=None, logging_config=None)
    async with listening_app(app, ws="websockets-sansio") as url:
        yield url


@asynccontextmanager
async def opened(environment: OpenEnvEnvironment, number: int = 0) -> AsyncIterator[tuple[OpenEnvWorld, Gateway]]:
    """The world of one of the first tasks of training, whose seeds are 0, 1 and 2."""
    scenarios = await asyncio.to_thread(environment.scenarios, "train", 99, 0)
    scenario = next(each for each in scenarios if each.id.endswith(" 1"))
    async with environment.open(scenario, scenario.tasks[number]) as world:
        yield world, gateway_of(world, 50)


def begin(then: Answer) -> Answer:
    """A tally until its first step."""
    tally = Tally()
    is_step = lambda message: message["type"] == "step" and message["data"].get("type") != "list_tools"  # noqa: E731
    return lambda message: then(message) if is_step(message) else tally(message)


def hang_up(_: dict[str, Any]) -> None:
    raise EOFError


async def test_its_tools_are_called_as_apis_and_the_last_reward_judges() -> None:
    async with serving(Tally) as url, opened(load_openenv(url=url), 2) as (world, call):
        assert world.task.instruction == "Raise the tally to 2."
        assert await call("env.raise_by", [], {"amount": 1}) == 1
        with pytest.raises(HostError, match=r"400.*a tally is raised by 1"):
            await call("env.raise_by", [], {"amount": 2})
        assert await call("env.raise_by", [], {"amount": 1}) == 2
        found = await verdict(world)
        assert (found.fraction, found.failures) == (0.5, ("the last reward is 0.5, and 1 is a success",))
        assert await call("env.tell", [], {"what": 2}) == "noted"
        assert (await verdict(world)).success
        with pytest.raises(HostError, match="the task has ended"):
            await call("env.raise_by", [], {"amount": 1})


async def test_an_agent_works_in_it_and_its_answer_is_submitted(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path)
    async with serving(Tally) as url, ForkedSandbox() as sandbox:
        environment = load_openenv(url=url, submit="tell", instruction="Count.")
        scenario, *_ = await asyncio.to_thread(environment.scenarios, "test", 99, 0)
        task = scenario.tasks[0]
        wanted = int(task.instruction.rpartition(" ")[2].rstrip("."))
        assert task.instruction == f"Count.\nRaise the tally to {wanted}."
        code = f"for _ in range({wanted}): tally = apis.env.raise_by(amount=1)\n"
        engine = ScriptedEngine(tokenizer, block(f"{code}apis.supervisor.complete_task(answer=tally)"))
        agent = Agent(engine, tokenizer, Compact(), sandbox, LIMITS)
        episode = await EpisodeRunner(agent, environment).run_task(scenario, task)
    assert episode.trajectory.stop is Stop.COMPLETED
    assert episode.verdict.success


async def test_splits_share_no_seed() -> None:
    async with serving(Tally) as url:
        environment = load_openenv(url=url, tasks=20)
        scenarios = [
            await asyncio.to_thread(environment.scenarios, split, 99, 0)
            for split in ("train", "validation", "test")
        ]
    seeds = [{task.instruction for each in found for task in each.tasks} for found in scenarios]
    assert [len(each) for each in seeds] == [12, 4, 4]
    assert len(set.union(*seeds)) == 20


async def test_a_tool_may_have_any_name() -> None:
    def odd(message: dict[str, Any]) -> Json:
        if message["type"] == "reset":
            return observed({"goal": "Go."})
        if message["data"]["type"] == "list_tools":
            return observed(
                {"tools": [{"name": name} for name in ("../listMails", "list mails/{id}", "list_mails")]}
            )
        return observed(called(message["data"]["tool_name"]))

    async with serving(lambda: odd) as url, opened(load_openenv(url=url)) as (world, call):
        names = world.catalog.names()["env"]
        assert names == ["list_mails", "list_mails_id", "list_mails_2"]
        found = [await call(f"env.{each}", [], {}) for each in names]
    assert found == ["../listMails", "list mails/{id}", "list_mails"]


async def test_an_environment_without_tools_takes_steps() -> None:
    def board(message: dict[str, Any]) -> Json:
        if message["type"] == "reset":
            return observed({"board": [[0, 1]], "legal": [0], "metadata": {}})
        if not isinstance(message["data"].get("column"), int):
            return failed("VALIDATION_ERROR", "Invalid message")
        return observed({"board": [[1, 1]], "legal": [], "metadata": {}}, 2.0, True)

    async with serving(lambda: board, MOVE) as url, opened(load_openenv(url=url, success=2)) as (world, call):
        assert world.task.instruction == '{"board": [[0, 1]], "legal": [0]}'
        assert [each.name for each in world.catalog.apps["env"].operations["step"].parameters] == ["column"]
        assert await call("env.step", [], {"column": 3}) == {"board": [[1, 1]], "legal": [], "done": True}
        assert (await verdict(world)).success


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        (hang_up, "the connection ended"),
        (lambda _: None, "it gave no answer within 5 s"),
        (lambda _: "<html>", "its reply is of another form"),
        (lambda _: "[" * 100_000, "its reply is of another form"),
        (lambda _: {"type": "result", "data": {}}, "replies to a step with 'result'"),
        (lambda _: {"type": "observation", "data": {"obs": 1}}, "another version of OpenEnv's protocol than 0.10"),
    ],
)
async def test_a_server_that_fails_costs_the_rollout(fails: Answer, error: str) -> None:
    async with (
        serving(lambda: begin(fails)) as url,
        opened(load_openenv(url=url, seconds=5.0), 1) as (world, call),
    ):
        with pytest.raises(HostError, match=error):
            await call("env.raise_by", [], {"amount": 1})
        with pytest.raises(WorldError, match=error):
            await verdict(world)


async def test_an_error_in_a_step_is_one_of_the_api() -> None:
    async with (
        serving(lambda: begin(lambda _: failed("EXECUTION_ERROR", "illegal"))) as url,
        opened(load_openenv(url=url)) as (world, call),
    ):
        with pytest.raises(HostError, match=r"500.*illegal"):
            await call("env.raise_by", [], {"amount": 1})
        assert not (await verdict(world)).success


async def test_a_step_whose_code_was_stopped_still_counts() -> None:
    async with serving(Tally) as url, opened(load_openenv(url=url), 1) as (world, call):
        running = asyncio.create_task(call("env.tell", [], {"what": 0}))
        await asyncio.sleep(0)
        while not world.connection.busy:  # noqa: ASYNC110
            await asyncio.sleep(0)
        running.cancel()
        assert not (await verdict(world)).success
        assert world.connection.last.done


async def test_a_server_without_a_free_session_is_asked_again_until_the_time_is_up() -> None:
    refusals = [True, True, False, False]

    def sometimes_full() -> Answer:
        return (lambda _: failed("CAPACITY_REACHED", "1/1 sessions active")) if refusals.pop(0) else Tally()

    async with serving(sometimes_full) as url, opened(load_openenv(url=url)) as (world, _):
        assert world.task.instruction.startswith("Raise")
    async with serving(lambda: lambda _: failed("CAPACITY_REACHED", "1/1 sessions active")) as url:
        with pytest.raises(WorldError, match=r"no free session: 1/1 sessions active\. Lower the option sessions"):
            async with opened(load_openenv(url=url, seconds=3.0)):
                pass


async def test_a_server_that_cannot_be_used_says_why() -> None:
    async def error_of(url: str, **options: Any) -> str:
        with pytest.raises((WorldError, InvalidError)) as caught:
            async with opened(load_openenv(url=url, **options)):
                pass
        return str(caught.value)

    [port] = free_ports(1)
    assert "cannot be reached" in await error_of(f"http://127.0.0.1:{port}")
    async with serving(Tally) as url:
        assert "/ws answers /schema with status 404: it speaks another version" in await error_of(f"{url}/ws")
        assert "submit=send: the server has the tools raise_by, tell" in await error_of(url, submit="send")
        assert "by=split" in (listing := await error_of(url, by="split"))
        assert "lists no tasks" in listing
    async with serving(lambda: lambda _: observed({"metadata": {}})) as url:
        assert "set the option instruction" in await error_of(url)
    async with serving(lambda: lambda _: failed("FACTORY_ERROR", "no display")) as url:
        assert "could not begin a task: no display" in await error_of(url)
    async with serving(
        lambda: lambda message: observed({"goal": "Go."} | ({"tools": []} if "type" in message["data"] else {}))
    ) as url:
        assert "offers no tools" in await error_of(url)
    async with serving(Tally, action=7) as url:
        assert "no schema of its actions" in await error_of(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_an_address_has_to_be_one(url: str) -> None:
    with pytest.raises(InvalidError, match="name the address of an OpenEnv server"):
        open_environment(f"trainer.worlds.openenv.environment:load_openenv?url={url}")
