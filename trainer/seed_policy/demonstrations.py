"""Demonstrations by rejection sampling: what an expert does in the real loop, kept where every check passed.

Each is a whole trajectory as serving would have recorded it: real services, real sandbox, and the skills it was
offered were extracted and checked as live ones are.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import msgspec

from app.agent.compact import Compact
from app.agent.limits import RolloutLimits
from app.agent.loop import Agent
from app.agent.watcher import Watcher
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.records import Offer, Policy, Task, Turn
from app.sandbox.protocol import Sandbox
from app.skills.memory import MemoryLibrary
from trainer.batch import Sample, sample_of
from trainer.collect import Outcome, Practice
from trainer.environment import Scenario
from trainer.environments.office.distractors import distractors
from trainer.environments.office.environment import OfficeEnvironment
from trainer.environments.office.expert import Expert, Faults
from trainer.environments.office.scenarios import site_of

FAULTS = Faults(unprepared=0.08, page=0.08, synonym=0.04, inline=0.02, ignore=0.02)
LIMITS = RolloutLimits(turns=8)
_AT_ONCE = 16
_OFFERED = 3


class Kept(msgspec.Struct, frozen=True):
    """What a round of demonstrations left."""

    samples: list[Sample]
    tried: int


class ExpertEngine(Watcher):
    """An engine whose policy is the expert, certain of every token. It watches what comes of its turns."""

    def __init__(self, expert: Expert, tokenizer: ChatTokenizer) -> None:
        super().__init__()
        self._expert = expert
        self._tokenizer = tokenizer
        self._observations: list[str] = []

    async def ended(self, index: int, turn: Turn) -> None:  # noqa: ARG002
        self._observations.append(turn.observation)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        text = self._expert.next_turn(self._observations)
        ids = (*self._tokenizer.encode(text), self._tokenizer.stop_ids[0])
        return Completion(ids, (0.0,) * len(ids), "stop")


class Classroom:
    """Where the expert works."""

    def __init__(self, tokenizer: ChatTokenizer, sandbox: Sandbox) -> None:
        self._tokenizer = tokenizer
        self._sandbox = sandbox
        self._environment = OfficeEnvironment()

    async def demonstrate(self, scenarios: Sequence[Scenario], seed: int) -> Kept:
        """The successful trajectories of the expert over these scenarios, in their order; the same for a seed."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def chain(scenario: Scenario) -> list[Outcome]:
            async with places:
                return await self._chain(scenario, Random(f"demonstrate {seed} {scenario.id}"))

        outcomes = [each for chain in await asyncio.gather(*map(chain, scenarios)) for each in chain]
        return Kept([sample_of(each.trajectory) for each in outcomes if each.verdict.success], len(outcomes))

    async def _chain(self, scenario: Scenario, rng: Random) -> list[Outcome]:
        library, outcomes = MemoryLibrary(), []
        for task in scenario.tasks:
            offers = await _offers(library, scenario, task, rng)
            expert = Expert(site_of(scenario), task.instruction, offers, rng=rng, faults=FAULTS)
            engine = ExpertEngine(expert, self._tokenizer)
            agent = Agent(engine, self._tokenizer, Compact(), self._sandbox, LIMITS)
            practice = Practice(agent, self._environment, Policy("expert"))
            outcomes.append(await practice.run_task(scenario, task, library, offers, watcher=engine))
        return outcomes


async def _offers(library: MemoryLibrary, scenario: Scenario, task: Task, rng: Random) -> list[Offer]:
    """What the chain's library finds, and beside it skills that do not fit, as a grown library would offer."""
    found = await library.find(task.instruction, scenario.id)
    if rng.random() < 0.4:
        return found
    others = distractors(task.instruction, site_of(scenario), rng, count=rng.randint(1, _OFFERED))
    return [*found, *others][:_OFFERED]
