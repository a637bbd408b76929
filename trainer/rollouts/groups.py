"""Groups of chains: the same tasks, rolled out G times side by side, each time with a library of its own."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from app.records import Task
from app.run_settings import RunSettings
from app.skills.memory import MemoryLibrary
from app.skills.ngrams import NgramIndex
from trainer.environment import Environment, Scenario, Split
from trainer.evaluation.local import result_of
from trainer.evaluation.metrics import TaskResult
from trainer.rollouts.episode import Outcome, Practice
from trainer.sage.advantages import Rewarded
from trainer.sage.reward import Link, link, rewards


class Chain(msgspec.Struct, frozen=True):
    """Tasks of one scenario, in the order in which they are worked through."""

    scenario: Scenario
    tasks: tuple[Task, ...]


class Rolled(msgspec.Struct, frozen=True):
    """One pass over a chain."""

    outcomes: tuple[Outcome, ...]
    links: tuple[Link, ...]


class Collected(msgspec.Struct, frozen=True):
    """What one step of rollouts gave."""

    rewarded: list[Rewarded]
    results: list[TaskResult]


@dataclass(frozen=True)
class Collector:
    """Rolls out groups of chains by the rules of a run."""

    practice: Practice
    settings: RunSettings
    new_library: Callable[[], MemoryLibrary]
    at_once: int = 128  # chains in flight: twice an engine's rows, so that none is empty while code runs

    async def collect(self, chains: Sequence[Chain], seed: int) -> Collected:
        """G passes over each chain."""
        places = asyncio.Semaphore(self.at_once)

        async def roll(chain: Chain, number: int, member: int) -> Rolled:
            async with places:
                return await self._roll(chain, Random(f"{seed} {number} {member}"))

        rolled = await asyncio.gather(
            *(
                roll(chain, number, member)
                for number, chain in enumerate(chains)
                for member in range(self.settings.group)
            )
        )
        rewarded: list[Rewarded] = []
        results: list[TaskResult] = []
        for index, each in enumerate(rolled):
            number = index // self.settings.group
            rewarded += self._rewarded(each, f"{number} {chains[number].scenario.id}")
            results += [result_of(chains[number].scenario, outcome) for outcome in each.outcomes]
        return Collected(rewarded, results)

    async def _roll(self, chain: Chain, rng: Random) -> Rolled:
        library = self.new_library() if self.settings.skills else None
        outcomes: list[Outcome] = []
        label = chain.scenario.id if self.settings.chain_by == "scenario" else None
        for task in chain.tasks:
            offers = await library.find(task.instruction, label) if library is not None else ()
            seed = rng.getrandbits(31)
            outcomes.append(await self.practice.run_task(chain.scenario, task, library, offers, seed=seed))
        return Rolled(tuple(outcomes), tuple(map(_link, outcomes)))

    def _rewarded(self, rolled: Rolled, group: str) -> list[Rewarded]:
        rule, name_only = self.settings.reward, self.settings.name_only_use
        earned = rewards(rolled.links, rule, name_only=name_only)
        return [
            Rewarded(
                trajectory=outcome.trajectory,
                reward=reward.total,
                score=reward.score,
                bonus=reward.bonus,
                group=group,
                position=position,
            )
            for position, (outcome, reward) in enumerate(zip(rolled.outcomes, earned, strict=True))
        ]


def draw_chains(environment: Environment, split: Split, settings: RunSettings, step: int) -> list[Chain]:
    """The chains of one step: the same for the same seed and step.

    By scenario, the tasks of a chain are drawn from one scenario's. By the nearest instructions, labels play no
    part: a task is drawn, and those that ask for something alike follow it.
    """
    rng = Random(f"chains {settings.seed} {step}")
    scenarios = environment.scenarios(split, settings.pairs, rng.randrange(2**31))
    if settings.chain_by == "nearest":
        return _by_instruction(scenarios, settings.chain, rng)
    return [Chain(each, tuple(rng.sample(each.tasks, min(settings.chain, len(each.tasks))))) for each in scenarios]


def _by_instruction(scenarios: Sequence[Scenario], length: int, rng: Random) -> list[Chain]:
    """As many chains as scenarios, each begun by a task of another one."""
    tasks = [task for scenario in scenarios for task in scenario.tasks]
    index: NgramIndex[int] = NgramIndex()
    for number, task in enumerate(tasks):
        index.add(number, task.instruction)
    chains = []
    for scenario in scenarios:
        first = rng.choice(scenario.tasks)
        near = [tasks[number] for number, _ in index.search(first.instruction, length)]
        alike = [task for task in near if task.id != first.id]
        chains.append(Chain(scenario, (first, *alike[: length - 1])))
    return chains


def _link(outcome: Outcome) -> Link:
    verdict = outcome.verdict
    return link(outcome.trajectory, verdict.fraction, success=verdict.success, made=outcome.made)
