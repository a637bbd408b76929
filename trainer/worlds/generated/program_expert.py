"""Experts that write programs: rollouts in the real sandbox, skills kept, crowded and withheld as in serving."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

import msgspec

from app.agent.limits import RolloutLimits
from app.agent.rollout_loop import Agent
from app.apis.builtin import with_builtins
from app.apis.catalog import Catalog
from app.apis.listed_app import listed_apps
from app.records import Offer, Policy, Task
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import Episode, EpisodeRunner
from trainer.rollouts.expert import ExpertContext
from trainer.worlds.expert_engine import ExpertEngine, Script
from trainer.worlds.generated.expert_programs import Program

_LIMITS = RolloutLimits(turns=8, task_tokens=32_768)
_OFFERED = 3


@dataclass(frozen=True)
class ProgramExpert(ABC):
    """Implements `Expert`. The same seed gives the same demonstrations.

    `crowded` is the share of tasks that are offered skills that do not fit, `withheld` of those that are offered
    none.
    """

    context: ExpertContext
    environment: Environment
    crowded: float
    withheld: float
    deterministic: bool = True

    @abstractmethod
    def script(self, task: Task, offers: Sequence[Offer], rng: Random) -> Script:
        """The turns of one task."""

    @abstractmethod
    def unfitting(self, task: Task, count: int, rng: Random) -> Sequence[Offer]:
        """Right solutions of other tasks with the same apps, as a grown library offers them."""

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:  # noqa: ARG002  it has none
        library, episodes = InMemoryLibrary(), []
        rng = Random(f"demonstrate {self.context.seed} {scenario.id}")
        for task in scenario.tasks:
            offers = await self._offers(library, scenario, task, rng)
            engine = ExpertEngine(self.script(task, offers, rng), self.context.tokenizer)
            agent = Agent(engine, self.context.tokenizer, self.context.profile, self.context.sandbox, _LIMITS)
            runner = EpisodeRunner(agent, self.environment, Policy("expert"))
            episodes.append(await runner.run_task(scenario, task, library, offers, hooks=engine))
        return episodes

    def says(self, words: str, catalog: Catalog, task: Task) -> bool:
        """Whether the prompt has these words, such as the name of an app, before the task."""
        apps = listed_apps(with_builtins(catalog))
        blank = msgspec.structs.replace(task, instruction="")
        text = "\n".join(message.content for message in self.context.profile.opening(blank, [], apps))
        return words in text

    async def _offers(self, library: InMemoryLibrary, scenario: Scenario, task: Task, rng: Random) -> list[Offer]:
        crowded, withheld = rng.random() < self.crowded, rng.random() < self.withheld
        found = [] if withheld else await library.find(task.instruction, scenario.id)
        if not crowded:
            return found
        offers = [*found, *self.unfitting(task, rng.randint(1, _OFFERED - len(found[:2])), rng)][:_OFFERED]
        rng.shuffle(offers)
        return offers


def offer_of(skill_id: UUID, program: Program, instruction: str) -> Offer:
    """The program as a skill that a library offers."""
    given = ", ".join(f"{name}: {kind}" for name, kind in program.parameters)
    return Offer(
        skill_id=skill_id,
        name=program.name,
        version=1,
        signature=f"{program.name}({given}) -> {program.returns}",
        source=program.function,
        instruction=instruction,
    )
