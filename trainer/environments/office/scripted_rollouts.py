"""What the scripted expert does in the real loop: real services, real sandbox, and skills extracted and checked as
live ones are.

Each outcome holds a whole trajectory as serving would have recorded it, judged by the verifier.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from app.agent.compact import Compact
from app.agent.hooks import Watcher
from app.agent.limits import RolloutLimits
from app.agent.loop import Agent
from app.agent.prompt import Profile
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.records import Offer, Policy, Task, Turn
from app.sandbox.protocol import Sandbox
from app.skills.memory import MemoryLibrary
from trainer.environment import Environment, Scenario
from trainer.environments.office.distractors import distractors
from trainer.environments.office.expert import Expert, Faults
from trainer.environments.office.scenarios import site_of
from trainer.rollouts.episode import Episode, EpisodeRunner

LIMITS = RolloutLimits(turns=8)
_AT_ONCE = 16
_OFFERED = 3


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


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where the expert works, and whom for: what it says is recorded in this tokenizer and profile."""

    environment: Environment
    tokenizer: ChatTokenizer
    sandbox: Sandbox
    profile: Profile = Compact()  # noqa: RUF009 - frozen
    crowding: float = 0.0  # share of tasks that are also offered skills that do not fit, as a grown library would

    async def play(self, scenario: Scenario, faults: Faults, rng: Random) -> list[Episode]:
        """One pass over the tasks of a scenario, each with the skills that the earlier ones left."""
        library, episodes = MemoryLibrary(), []
        for task in scenario.tasks:
            offers = await self._offers(library, scenario, task, rng)
            expert = Expert(site_of(scenario), task.instruction, offers, rng=rng, faults=faults)
            engine = ExpertEngine(expert, self.tokenizer)
            agent = Agent(engine, self.tokenizer, self.profile, self.sandbox, LIMITS)
            episode_runner = EpisodeRunner(agent, self.environment, Policy("expert"))
            episodes.append(await episode_runner.run_task(scenario, task, library, offers, watcher=engine))
        return episodes

    async def _offers(self, library: MemoryLibrary, scenario: Scenario, task: Task, rng: Random) -> list[Offer]:
        found = await library.find(task.instruction, scenario.id)
        if rng.random() < 1 - self.crowding:
            return found
        others = distractors(task.instruction, site_of(scenario), rng, count=rng.randint(1, _OFFERED))
        return [*found, *others][:_OFFERED]


async def demonstrate(
    stage: Stage, scenarios: Sequence[Scenario], faults: Faults, seed: int, *, at_once: int = _AT_ONCE
) -> list[Episode]:
    """What the expert did over these scenarios, in their order, failures included; the same for a seed."""
    places = asyncio.Semaphore(at_once)

    async def chain(scenario: Scenario) -> list[Episode]:
        async with places:
            return await stage.play(scenario, faults, Random(f"demonstrate {seed} {scenario.id}"))

    return [each for chain in await asyncio.gather(*map(chain, scenarios)) for each in chain]
