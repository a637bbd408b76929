"""The expert of the gym: rollouts in the real sandbox, with skills kept, crowded and withheld as in serving."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from uuid import UUID

import msgspec

from app.errors import InvalidError
from app.records import Offer, Task
from trainer.rollouts.expert import ExpertContext
from trainer.worlds.expert_engine import Script
from trainer.worlds.generated.expert_programs import draw_style, write_program
from trainer.worlds.generated.gym_environment import GymEnvironment, catalog_in
from trainer.worlds.generated.gym_plans import ScenarioPlan, draw_values, place_in, plan_of
from trainer.worlds.generated.gym_script import GymScript, subject_of
from trainer.worlds.generated.instructions import instruction_of
from trainer.worlds.generated.program_expert import ProgramExpert, offer_of
from trainer.worlds.generated.program_script import Habits, Part
from trainer.worlds.generated.task_forms import forms_of


@asynccontextmanager
async def load_expert(
    context: ExpertContext,
    *,
    inline: Part = 0.2,
    mistake: Part = 0.3,
    trust: Part = 0.3,
    crowded: Part = 0.3,
    withheld: Part = 0.15,
) -> AsyncIterator["GymExpert"]:
    """The plug-in `gym`. `crowded` and `withheld` as in `ProgramExpert`; the others are the probabilities in
    `Habits`.

    Raises InvalidError for another environment than the gym.
    """
    if not isinstance(context.environment, GymEnvironment):
        raise InvalidError("the expert gym knows the environment gym only: name that one, or another expert")
    habits = Habits(inline=inline, mistake=mistake, trust=trust)
    yield GymExpert(context, context.environment, crowded, withheld, habits=habits)


@dataclass(frozen=True, kw_only=True)
class GymExpert(ProgramExpert):
    habits: Habits

    def script(self, task: Task, offers: Sequence[Offer], rng: Random) -> Script:
        key, index = place_in(task.variables["world"])
        plan = plan_of(key)
        knows_apps = self.says(plan.main.name, catalog_in(key), task)
        return GymScript(plan, index, offers, habits=self.habits, rng=rng, knows_apps=knows_apps)

    def unfitting(self, task: Task, count: int, rng: Random) -> Sequence[Offer]:
        return unfitting_skills(plan_of(place_in(task.variables["world"])[0]), count, rng)


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
    skill_id = UUID(int=rng.getrandbits(128))
    return offer_of(skill_id, program, instruction_of(other, rng.randrange(len(values))))
