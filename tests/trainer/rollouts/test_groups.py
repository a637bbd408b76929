"""Groups of chains: sampling, separate libraries, and comparison by position."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest

from app.agent.prompts import Compact
from app.agent.rollout import Agent
from app.base.errors import WorldError
from app.base.model_catalog import SEED_DIR
from app.base.run_settings import RunKind, RunSettings
from app.base.values import Policy, Task, Trajectory
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.search import scenario as by_scenario
from trainer.engines.embedded import subprocess_engine
from trainer.environment import Scenario, Split, Verdict, World
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import Collected, GroupCollector, draw_chains
from trainer.sage.advantages import compute_advantages
from trainer.sage.reward import ChainStep, Reward, outcome, with_use_values
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.rollouts import LIMITS

SETTINGS = RunSettings(
    kind=RunKind.ROLLOUT, pairs=2, group=6, reward="tests.trainer.rollouts.test_groups:recording"
)
REWARDED: list[Sequence[ChainStep]] = []


def recording(chain: Sequence[ChainStep]) -> list[Reward]:
    """A rule that keeps what it saw."""
    REWARDED.append(chain)
    return outcome(chain)


def test_chains_are_determined_by_the_seed_and_the_step() -> None:
    environment = OfficeEnvironment()
    drawn = [draw_chains(environment, "train", SETTINGS, step) for step in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_chain_has_different_tasks_of_one_scenario() -> None:
    for chain in draw_chains(OfficeEnvironment(), "train", SETTINGS, 1):
        assert {task.scenario for task in chain.tasks} == {chain.scenario.id}
        assert len({task.id for task in chain.tasks}) == SETTINGS.chain


def test_where_skills_are_found_without_labels_a_chain_continues_with_a_similar_task() -> None:
    settings = RunSettings(pairs=6, retrieval="query_ngram")
    chains = draw_chains(OfficeEnvironment(site=0), "train", settings, 1)
    templates = [{task.scenario for task in chain.tasks} for chain in chains]
    assert all(len(chain.tasks) == settings.chain for chain in chains)
    assert Counter(map(len, templates))[1] >= 5  # mostly the scenarios that the labels would give


async def test_a_group_is_compared_position_by_position_and_shares_no_library() -> None:
    model = SEED_DIR
    async with subprocess_engine(model, "cpu") as engine, ForkedSandbox() as sandbox:
        agent = Agent(engine, ChatTokenizer.load(model), Compact(), sandbox, LIMITS, temperature=1.0)
        episode_runner = EpisodeRunner(agent, OfficeEnvironment(), Policy())
        libraries: list[InMemoryLibrary] = []

        def new_library() -> InMemoryLibrary:
            libraries.append(InMemoryLibrary(retrieval=by_scenario))
            return libraries[-1]

        reports: list[tuple[int, int]] = []
        collector = GroupCollector(episode_runner, SETTINGS, new_library, report=lambda *of: reports.append(of))
        chains = draw_chains(episode_runner.environment, "train", SETTINGS, 1)
        rollouts, failed = await collector.collect(chains, seed=1)
    assert failed == 0
    total = SETTINGS.pairs * SETTINGS.group
    assert reports == [(done, total) for done in range(1, total + 1)]
    for begin in range(0, len(REWARDED), SETTINGS.group):
        seen = [(place, step) for chain in REWARDED[begin:][: SETTINGS.group] for place, step in enumerate(chain)]
        steps = [step for _, step in seen]
        assert steps == with_use_values(steps, [place for place, _ in seen])
    assert {step.use_value is None for chain in REWARDED for step in chain} == {True, False}
    scored = [one for each in rollouts for one in each.scored]
    assert len(libraries) == SETTINGS.pairs * SETTINGS.group
    cells = Counter((item.group, item.position) for item in scored)
    assert set(cells.values()) == {SETTINGS.group}
    assert len(cells) == SETTINGS.pairs * SETTINGS.chain
    assert not any(item.trajectory.offered for item in scored if item.position == 0)
    sums: dict[tuple[str, int], float] = defaultdict(float)
    for advantaged in compute_advantages(scored):
        sums[advantaged.rollout.group, advantaged.rollout.position] += advantaged.advantage
    assert all(abs(total) < 1e-9 for total in sums.values())


class Fragile:
    """An environment of others, whose worlds fail: those with these numbers, to be verified or to be opened."""

    def __init__(self, failing: Container[int]) -> None:
        self._office, self._failing, self._opened = OfficeEnvironment(), failing, count()

    def scenarios(self, split: Split, number: int, seed: int) -> Sequence[Scenario]:
        return self._office.scenarios(split, number, seed)

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[World]:
        fails = (number := next(self._opened)) in self._failing
        if fails and number % 2:
            raise RuntimeError("no port is free")
        async with self._office.open(scenario, task) as world:
            yield Unverifiable(world) if fails else world


class Unverifiable:
    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    async def verify(self, trajectory: Trajectory) -> Verdict:
        raise KeyError(f"the row of {trajectory.task.id} is gone")


async def test_a_world_that_fails_costs_its_own_rollout_and_the_step_fails_only_if_all_do() -> None:
    model = SEED_DIR
    settings = msgspec.structs.replace(SETTINGS, pairs=1, group=4, chain=1, reward="outcome")
    async with subprocess_engine(model, "cpu") as engine, ForkedSandbox() as sandbox:
        agent = Agent(engine, ChatTokenizer.load(model), Compact(), sandbox, LIMITS, temperature=1.0)

        async def collected(failing: Container[int]) -> Collected:
            runner = EpisodeRunner(agent, Fragile(failing), Policy())
            collector = GroupCollector(runner, settings, partial(InMemoryLibrary, retrieval=by_scenario))
            return await collector.collect(draw_chains(runner.environment, "train", settings, 1), seed=1)

        rollouts, failed = await collected({1, 2})
        assert (len(rollouts), failed) == (settings.pairs * settings.group - 2, 2)
        assert all(len(each.scored) == 1 for each in rollouts)
        with pytest.raises(WorldError, match=r"failed: (no port is free|'the row of .* is gone')"):
            await collected(range(100))
