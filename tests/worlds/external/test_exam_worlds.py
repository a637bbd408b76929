"""The worlds for exams, BFCL and AgentDojo: their options, and the packages themselves."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.apis.calls.gateway import Gateway
from app.base.errors import HostError, InvalidError
from app.base.values import Policy, Stop, Trajectory
from trainer.environment import Verdict, open_environment
from trainer.worlds.external.check import Checked, check
from trainer.worlds.external.environment import ExternalWorld, Reference
from trainer.worlds.external.packages import PACKAGES, load_agentdojo, load_bfcl

_LOADS = "trainer.worlds.external.packages:load_"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAGE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        for name in ("agentdojo", "bfcl"):
            PACKAGES[name].install(print)
        yield


async def verdict(world: ExternalWorld, answer: str) -> Verdict:
    return await world.verify(
        Trajectory(task=world.task, policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED, answer=answer)
    )


@pytest.mark.parametrize("name", ["bfcl?category=live", "agentdojo?suite=vault", "agentdojo?attack=dos"])
def test_an_option_that_the_package_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidError):
        open_environment(_LOADS + name)


def test_security_is_judged_under_an_attack_alone() -> None:
    with pytest.raises(InvalidError, match="judge=security needs an attack"):
        load_agentdojo(judge="security")


def test_they_say_how_they_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_DATA_DIR", str(tmp_path))
    with pytest.raises(InvalidError, match="`sage worlds install agentdojo`"):
        load_agentdojo()
    with pytest.raises(InvalidError, match="`sage worlds install bfcl`"):
        load_bfcl()


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("category", ["base", "miss_func", "miss_param", "long_context"])
async def test_the_conversations_of_bfcl_are_solved_by_their_ground_truth_alone(category: str) -> None:
    found = (await check(f"{_LOADS}bfcl?category={category}", ["test"], 12, report=False))["test"]
    assert found == Checked(tasks=found.tasks, reference=found.tasks, nothing=0, random=0)
    assert found.tasks > 12


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
async def test_a_function_that_bfcl_holds_back_is_called_once_a_request_has_added_it() -> None:
    environment = load_bfcl(category="miss_func")
    tasks = [(each, task) for each in environment.scenarios("test", 1_000, 0) for task in each.tasks]
    scenario, task = next(pair for pair in tasks if environment.tasks[pair[1].id].id == "multi_turn_miss_func_0")
    async with environment.open(scenario, task) as world:
        gateway = world.open_gateway(max_calls=50)
        assert "sort" not in world.catalog.apps["gorilla_file_system"].operations
        sort = {"function": "sort", "arguments": {"file_name": "final_report.pdf"}}
        with pytest.raises(HostError, match="no request has added a function 'sort'"):
            await gateway("user.call_added", [], sort)
        await gateway("gorilla_file_system.cd", [], {"folder": "document"})
        with pytest.raises(HostError, match="No such file or directory"):
            await gateway("gorilla_file_system.cd", [], {"folder": "nowhere"})
        requests = [await gateway("user.next_request", [], {}) for _ in range(3)]
        assert [each["name"] for each in requests[2]["functions"]] == ["sort"]
        with pytest.raises(HostError, match="no argument can be named"):
            await gateway("user.call_added", [], {"function": "sort", "arguments": {"a=print(1),b": 1}})
        assert "sorted_content" in await gateway("user.call_added", [], sort)
        assert (await verdict(world, "")).failures == ("not so: all requests were asked for, but 4 of 5",)
        assert (await gateway("user.next_request", [], {}))["request"].startswith("Move 'previous_report.pdf'")
        assert (await gateway("user.next_request", [], {})) == {"request": None}
        (failure,) = (await verdict(world, "")).failures
        assert "does not match the state" in failure


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
async def test_the_tasks_of_agentdojo_are_solved_by_their_ground_truth() -> None:
    found = await check(f"{_LOADS}agentdojo?suite=slack", ["test"], report=False)
    assert found == {"test": Checked(tasks=21, reference=21, nothing=0, random=0)}


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("limits", "attacked"), [("off", 5), ("task", 0)])
async def test_an_agent_that_obeys_an_injection_is_stopped_by_the_limits_of_its_task(
    limits: str, attacked: int
) -> None:
    environment = load_agentdojo(suite="banking", attack="direct", judge="security", limits=limits)  # type: ignore[arg-type]
    scenarios = environment.scenarios("test", 5, 0)
    resisted = 0
    for scenario in scenarios:
        async with environment.open(scenario, scenario.tasks[0]) as world:
            gateway = world.open_gateway(max_calls=50)
            for goal in ("task", "injection"):
                await carry_out(gateway, await world.reference(goal))
            resisted += (await verdict(world, "")).success
    assert len(scenarios) - resisted == attacked


async def carry_out(gateway: Gateway, reference: Reference) -> None:
    for operation, arguments in reference.calls:
        with suppress(HostError):  # refused
            await gateway(f"banking.{operation}", [], arguments)
