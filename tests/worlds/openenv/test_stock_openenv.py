"""What the package openenv has of clients and servers works with ours. Takes a minute, and a package index."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.base.errors import HostError, WorldError
from tests.support.processes import free_ports
from tests.worlds.openenv.solving import code_of, completion, drawn
from tests.worlds.openenv.test_served_tasks import served, verdict
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import gateway_of
from trainer.worlds.generated.gym import GymEnvironment
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.openenv.environment import OpenEnvEnvironment, load_openenv

pytestmark = pytest.mark.slow
_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the package."""
    directory = tmp_path_factory.mktemp("stock")
    own = directory / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    install = ["-m", "pip", "install", "-q", "--no-deps", "-r", str(_HERE / "stock.txt")]
    subprocess.run([str(own), *install], check=True, capture_output=True)
    return own


@asynccontextmanager
async def stock_server(python: Path, kind: str, sessions: int) -> AsyncIterator[str]:
    [port] = free_ports(1)
    script = str(_HERE / "stock_server_host.py")
    url = f"http://127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(python, script, kind, str(port), str(sessions))
    try:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=9)) as client:
            assert (await client.get(f"{url}/health")).json() == {"status": "healthy"}
        yield url
    finally:
        process.terminate()
        await process.wait()


async def tasks_of(environment: OpenEnvEnvironment) -> list[tuple[Scenario, int]]:
    """Scenarios of the test, and the positions of their tasks."""
    scenarios = await asyncio.to_thread(environment.scenarios, "test", 99, 0)
    return [(each, index) for each in scenarios for index in range(len(each.tasks))]


@pytest.mark.parametrize("environment", [OfficeEnvironment(), GymEnvironment()], ids=["office", "gym"])
async def test_its_clients_solve_the_tasks_of_our_server(environment: Environment, python: Path) -> None:
    tasks: list[dict[str, Any]] = []
    for seed in range(10):
        placed = drawn(environment, seed)
        tasks.append({"seed": seed, "code": [code_of(environment, placed), completion(environment, placed)]})
    async with served(environment, sessions=1) as url:
        done = await asyncio.to_thread(
            subprocess.run,
            [str(python), str(_HERE / "stock_client_host.py"), url],
            input=json.dumps(tasks).encode(),
            capture_output=True,
        )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["generic"]["rewards"] == found["mcp"]["rewards"] == [[1.0, True]] * 10
    assert found["generic"]["instruction"].endswith(f"Task: {drawn(environment, 0).task.instruction}")
    assert found["mcp"]["instruction"].endswith(f"Task: {drawn(environment, 9).task.instruction}")
    assert found["mcp"]["tools"] == ["run_python", "complete_task"]
    assert found["mcp"]["printed"] == "Output:\n42"
    idle, reward, ended = found["generic"]["nothing"]
    assert (idle, ended, found["generic"]["steps"]) == (False, True, 1)
    assert reward < 1


async def test_our_client_calls_the_tools_of_its_server(python: Path) -> None:
    async with stock_server(python, "tally", 1) as url:
        environment = load_openenv(url=url, tasks=25)
        solved = []
        for scenario, index in await tasks_of(environment):
            async with environment.open(scenario, scenario.tasks[index]) as world:
                call = gateway_of(world, 50)
                wanted = int(world.task.instruction.partition(",")[0].rpartition(" ")[2])
                with pytest.raises(HostError, match="a tally is raised by 1"):
                    await call("env.raise_by", [], {"amount": 2})
                for value in range(wanted):
                    assert await call("env.raise_by", [], {"amount": 1}) == value + 1
                assert not (await verdict(world)).success
                assert await call("env.tell", [], {"what": wanted}) == f"you told {wanted}"
                solved.append((await verdict(world)).success)
    assert solved == [True] * 5


async def test_our_client_takes_steps_where_its_server_has_no_tools(python: Path) -> None:
    async with stock_server(python, "guess", 2) as url:
        environment = load_openenv(url=url, tasks=25, sessions=2)

        async def solve(scenario: Scenario, index: int) -> bool:
            async with environment.open(scenario, scenario.tasks[index]) as world:
                assert world.task.instruction == "Guess a number below ten."
                assert not (await verdict(world)).success
                call = gateway_of(world, 50)
                with pytest.raises(HostError, match="None is not of type 'integer'"):
                    await call("env.step", [], {"number": None})
                with pytest.raises(HostError, match=r"500.*it is below ten"):
                    await call("env.step", [], {"number": 10})
                number = 0
                while (seen := await call("env.step", [], {"number": number}))["hint"] == "higher":
                    number += 1
                assert seen == {"hint": "right", "done": True}
                return (await verdict(world)).success

        solved = await asyncio.gather(*(solve(*each) for each in await tasks_of(environment)))
    assert solved == [True] * 5


async def test_the_end_of_its_server_costs_the_rollout(python: Path) -> None:
    async with stock_server(python, "tally", 1) as url:
        environment = load_openenv(url=url, seconds=20.0)
        (scenario, index), *_ = await tasks_of(environment)
        opened = environment.open(scenario, scenario.tasks[index])
        world = await opened.__aenter__()
    with pytest.raises(HostError, match="the connection ended"):
        await gateway_of(world, 50)("env.raise_by", [], {"amount": 1})
    with pytest.raises(WorldError, match="the connection ended"):
        await verdict(world)
    await opened.__aexit__(None, None, None)
