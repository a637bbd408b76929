"""Groups of chains: the same tasks, rolled out G times in parallel, each time with a library of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from app.plugins import registry
from app.run_settings import RunSettings
from app.skills.ngrams import NgramIndex
from trainer.environment import Environment, Scenario, Split
from trainer.rollouts.chain_step import chain_step
from trainer.rollouts.episode import Chain, Episode, EpisodeRunner
from trainer.rollouts.protocols import LibraryFactory
from trainer.sage.advantages import ScoredRollout
from trainer.sage.chains import nearest_chain, sample_chain
from trainer.sage.reward import RewardRule


class ChainRollout(msgspec.Struct, frozen=True):
    """One rollout of a chain, with the reward of each task."""

    scenario: Scenario
    episodes: tuple[Episode, ...]
    scored: tuple[ScoredRollout, ...]


@dataclass(frozen=True)
class GroupCollector:
    """Rolls out groups of chains by the settings of a run."""

    runner: EpisodeRunner
    settings: RunSettings
    new_library: LibraryFactory
    at_once: int = 128  # chains in flight: twice an engine's batch, so that it stays full while code runs

    async def collect(self, chains: Sequence[Chain], seed: int) -> list[ChainRollout]:
        """G rollouts of each chain, in the order of `chains`."""
        rule: RewardRule = registry.load("sage.rewards", self.settings.reward)
        slots = asyncio.Semaphore(self.at_once)

        async def roll_out(number: int, member: int) -> ChainRollout:
            async with slots:
                chain, rng = chains[number], Random(f"{seed} {number} {member}")
                library = self.new_library() if self.settings.skills else None
                seeds = [rng.getrandbits(31) for _ in chain.tasks]
                episodes = await self.runner.run_chain(chain, library, seeds)
                return _scored(chain.scenario, episodes, rule, group=f"{number} {chain.scenario.id}")

        members = range(self.settings.group)
        return await asyncio.gather(*(roll_out(number, each) for number in range(len(chains)) for each in members))


def _scored(scenario: Scenario, episodes: Sequence[Episode], rule: RewardRule, *, group: str) -> ChainRollout:
    steps = [
        chain_step(
            each.trajectory, each.verdict.fraction, success=each.verdict.success, creditable=each.creditable
        )
        for each in episodes
    ]
    scored = tuple(
        ScoredRollout(
            trajectory=episode.trajectory,
            reward=reward.total,
            score=reward.score,
            bonus=reward.bonus,
            group=group,
            position=position,
        )
        for position, (episode, reward) in enumerate(zip(episodes, rule(steps), strict=True))
    )
    return ChainRollout(scenario, tuple(episodes), scored)


def draw_chains(environment: Environment, split: Split, settings: RunSettings, step: int) -> list[Chain]:
    """The chains of one step, determined by the seed and the step.

    By scenario, a chain is sampled from the tasks of one scenario. By the nearest instructions, labels are not
    used: each chain begins with a task of another scenario, and the tasks with the nearest instructions follow it.
    """
    rng = Random(f"chains {settings.seed} {step}")
    scenarios = environment.scenarios(split, settings.pairs, rng.randrange(2**31))
    if settings.chain_by == "scenario":
        return [Chain(each, sample_chain(each.tasks, settings.chain, rng), each.id) for each in scenarios]
    tasks = [task for scenario in scenarios for task in scenario.tasks]
    index: NgramIndex[int] = NgramIndex()
    for number, task in enumerate(tasks):
        index.add(number, task.instruction)
    chains = []
    for scenario in scenarios:
        first = rng.choice(scenario.tasks)
        ranked = [tasks[number] for number, _ in index.search(first.instruction, settings.chain)]
        chains.append(Chain(scenario, nearest_chain(first, ranked, settings.chain), None))
    return chains
