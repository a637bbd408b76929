"""Chains of tasks in an environment: skills pass from task to task, never from chain to chain."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.values import Policy, Stop
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from tests.support.evaluated_server import ExpertPolicy
from tests.support.scripted_engine import Script, ScriptedEngine, block, byte_tokenizer
from trainer.environment import Scenario
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.metrics import measure
from trainer.rollouts.episode import EpisodeRunner, scenario_chain
from trainer.worlds.office.environment import OfficeEnvironment


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as opened:
        yield opened


@pytest.fixture
def scenarios() -> Sequence[Scenario]:
    return OfficeEnvironment().scenarios("test", 3, seed=5)


class ScriptedRunner:
    """An episode runner with a scripted engine."""

    def __init__(self, sandbox: ForkedSandbox, directory: Path, script: Script) -> None:
        tokenizer = byte_tokenizer(directory)
        self.engine = ScriptedEngine(tokenizer, script=script)
        limits = RolloutLimits(turns=5, turn_tokens=2000)  # of one byte each
        agent = Agent(self.engine, tokenizer, Compact(), sandbox, limits)
        self.episode_runner = EpisodeRunner(agent, OfficeEnvironment(), Policy("wise"))


@pytest.fixture
def scripted(sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]) -> ScriptedRunner:
    return ScriptedRunner(sandbox, tmp_path, ExpertPolicy(scenarios))


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_chain_passes_its_skills_on(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario], guarded: bool
) -> None:
    library = InMemoryLibrary()
    runner = replace(scripted.episode_runner, guard_written=guarded)
    episodes = await runner.run_chain(scenario_chain(scenarios[0]), library, range(3))
    assert [each.verdict.success for each in episodes] == [True, True, True]
    assert [len(each.trajectory.turns) for each in episodes] == [3, 2, 2]
    assert [len(each.trajectory.offered) for each in episodes] == [0, 1, 1]
    assert len(library) == 1
    assert library.manifests.keys() == {offer.skill_id for each in episodes for offer in each.made if guarded}
    assert [each.trajectory.task.instruction for each in episodes] == [
        task.instruction for task in scenarios[0].tasks
    ]


async def test_a_chain_without_a_library_offers_no_skills(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    episodes = await scripted.episode_runner.run_chain(scenario_chain(scenarios[0]), None, range(3))
    assert [len(each.trajectory.turns) for each in episodes] == [3, 3, 3]
    assert [each.trajectory.offered for each in episodes] == [(), (), ()]


async def test_each_task_is_sampled_with_a_seed_of_its_own(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    episodes = await scripted.episode_runner.run_chain(scenario_chain(scenarios[0]), None, range(7, 10))
    assert {each.trajectory.policy for each in episodes} == {Policy("wise")}
    assert set(scripted.engine.models) == {"wise"}
    assert len({sampling.seed for sampling in scripted.engine.samplings}) == 9


async def test_two_chains_of_one_scenario_never_share_a_skill(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    results = await evaluate_scenarios(scripted.episode_runner, [scenarios[0]] * 3, library=True)
    assert [each.offered for each in results] == [0, 1, 1] * 3


async def test_an_evaluation_has_a_result_for_each_task(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    done: list[int] = []
    results = await evaluate_scenarios(scripted.episode_runner, scenarios, library=True, report=done.append)
    assert done == [3, 3, 3]
    assert [each.scenario for each in results] == [each.id for each in scenarios for _ in range(3)]
    assert [(each.turns, each.used, each.wrote) for each in results] == [(3, 0, 1), (2, 1, 0), (2, 1, 0)] * 3
    assert {each.stop for each in results} == {"completed"}
    found = measure(results)
    assert (found.tgc.mean, found.sgc.mean) == (100, 100)


async def test_a_task_that_was_only_declared_complete_is_a_failure_and_makes_no_skill(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    lazy = ScriptedRunner(sandbox, tmp_path, lambda *_: block("apis.supervisor.complete_task()"))
    library = InMemoryLibrary()
    episodes = await lazy.episode_runner.run_chain(scenario_chain(scenarios[0]), library, range(3))
    assert [each.trajectory.stop for each in episodes] == [Stop.COMPLETED] * 3
    assert not any(each.verdict.success for each in episodes)
    assert all(each.verdict.failures for each in episodes)
    assert len(library) == 0
