"""The expert of the gym: rollouts in the real sandbox, with skills kept, crowded and withheld as in serving."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Annotated
from uuid import UUID

import msgspec

from app.agent.limits import RolloutLimits
from app.agent.rollout_loop import Agent
from app.apis.builtin import with_builtins
from app.errors import InvalidError
from app.records import Offer, Policy, Task
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Scenario
from trainer.environments.expert_engine import ExpertEngine
from trainer.environments.gym.expert_programs import draw_style, write_program
from trainer.environments.gym.gym_environment import GymEnvironment, catalog_in
from trainer.environments.gym.gym_plans import ScenarioPlan, draw_values, place_in, plan_of
from trainer.environments.gym.gym_script import GymHabits, GymScript, subject_of
from trainer.environments.gym.instructions import instruction_of
from trainer.environments.gym.task_forms import forms_of
from trainer.rollouts.episode import Episode, EpisodeRunner
from trainer.rollouts.expert import ExpertContext

_LIMITS = RolloutLimits(turns=8, task_tokens=32_768)
_OFFERED = 3

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]


@asynccontextmanager
async def load_expert(
    context: ExpertContext,
    *,
    inline: Part = 0.2,
    mistake: Part = 0.15,
    trust: Part = 0.3,
    crowded: Part = 0.3,
    withheld: Part = 0.15,
) -> AsyncIterator["GymExpert"]:
    """The plug-in `gym`. `crowded` is the share of tasks that are offered skills that do not fit, `withheld` of
    those that are offered none; the others are the probabilities in `GymHabits`.

    Raises InvalidError for another environment than the gym.
    """
    if not isinstance(context.environment, GymEnvironment):
        raise InvalidError("the expert gym knows the environment gym only: name that one, or another expert")
    habits = GymHabits(inline=inline, mistake=mistake, trust=trust)
    yield GymExpert(context, context.environment, habits, crowded, withheld)


@dataclass(frozen=True)
class GymExpert:
    """Implements `Expert`. The same seed gives the same demonstrations."""

    context: ExpertContext
    environment: GymEnvironment
    habits: GymHabits
    crowded: float
    withheld: float
    deterministic: bool = True

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:  # noqa: ARG002  it has none
        library, episodes = InMemoryLibrary(), []
        rng = Random(f"demonstrate {self.context.seed} {scenario.id}")
        for task in scenario.tasks:
            key, index = place_in(task.variables["world"])
            plan = plan_of(key)
            offers = await self._offers(library, scenario, task, plan, rng)
            knows_apps = self._lists_apps(plan, task)
            script = GymScript(plan, index, offers, habits=self.habits, rng=rng, knows_apps=knows_apps)
            engine = ExpertEngine(script, self.context.tokenizer)
            agent = Agent(engine, self.context.tokenizer, self.context.profile, self.context.sandbox, _LIMITS)
            runner = EpisodeRunner(agent, self.environment, Policy("expert"))
            episodes.append(await runner.run_task(scenario, task, library, offers, hooks=engine))
        return episodes

    def _lists_apps(self, plan: ScenarioPlan, task: Task) -> bool:
        """Whether the prompt tells which apps there are."""
        apps = {app.name: app.description for app in with_builtins(catalog_in(plan.key)).apps.values()}
        blank = msgspec.structs.replace(task, instruction="")
        text = "\n".join(message.content for message in self.context.profile.opening(blank, [], apps))
        return plan.main.name in text

    async def _offers(
        self, library: InMemoryLibrary, scenario: Scenario, task: Task, plan: ScenarioPlan, rng: Random
    ) -> list[Offer]:
        crowded, withheld = rng.random() < self.crowded, rng.random() < self.withheld
        found = [] if withheld else await library.find(task.instruction, scenario.id)
        if not crowded:
            return found
        offers = [*found, *unfitting_skills(plan, rng.randint(1, _OFFERED - len(found[:2])), rng)][:_OFFERED]
        rng.shuffle(offers)
        return offers


def unfitting_skills(plan: ScenarioPlan, count: int, rng: Random) -> Sequence[Offer]:
    """Right solutions of other tasks with the same apps, as a grown library offers them."""
    joined = plan.form.joined
    forms = [each for each in forms_of("train") if each != plan.form and each.joined in (None, joined)]
    return [_offer(msgspec.structs.replace(plan, form=form), rng) for form in rng.sample(forms, count)]


def _offer(plan: ScenarioPlan, rng: Random) -> Offer:
    joined = plan.joined if plan.form.joined else None
    values, _ = draw_values(plan.key, plan.form, plan.main, joined)
    other = msgspec.structs.replace(plan, joined=joined, values=values)
    program = write_program(subject_of(other), draw_style(rng))
    given = ", ".join(f"{name}: {kind}" for name, kind in program.parameters)
    return Offer(
        skill_id=UUID(int=rng.getrandbits(128)),
        name=program.name,
        version=1,
        signature=f"{program.name}({given}) -> {program.returns}",
        source=program.function,
        instruction=instruction_of(other, rng.randrange(len(values))),
    )
