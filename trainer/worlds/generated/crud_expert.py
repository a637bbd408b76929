"""The expert of the crud environment."""

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
from trainer.worlds.generated.crud_environment import CrudEnvironment, catalog_in
from trainer.worlds.generated.crud_phrases import instruction_of
from trainer.worlds.generated.crud_plans import CrudPlan, draw_form, draw_values, place_in, plan_of
from trainer.worlds.generated.crud_programs import subject_of, write_program
from trainer.worlds.generated.crud_script import CrudScript
from trainer.worlds.generated.program_expert import ProgramExpert, offer_of
from trainer.worlds.generated.program_script import Habits, Part


@asynccontextmanager
async def load_expert(
    context: ExpertContext,
    *,
    inline: Part = 0.2,
    mistake: Part = 0.3,
    trust: Part = 0.3,
    crowded: Part = 0.3,
    withheld: Part = 0.15,
) -> AsyncIterator["CrudExpert"]:
    """The plug-in `crud`, with the options of the expert `gym`. It errs more often: real documents are long.

    Raises InvalidError for another environment than `crud`.
    """
    if not isinstance(context.environment, CrudEnvironment):
        raise InvalidError("the expert crud knows the environment crud only: name that one, or another expert")
    habits = Habits(inline=inline, mistake=mistake, trust=trust)
    yield CrudExpert(context, context.environment, crowded, withheld, habits=habits)


@dataclass(frozen=True, kw_only=True)
class CrudExpert(ProgramExpert):
    habits: Habits

    def script(self, task: Task, offers: Sequence[Offer], rng: Random) -> Script:
        key, index = place_in(task.variables["world"])
        plan = plan_of(key)
        named = plan.main.name if plan.form.goal == "info" else plan.target.domain.nouns
        knows_apps = self.says(named, catalog_in(key), task)
        return CrudScript(plan, index, offers, habits=self.habits, rng=rng, knows_apps=knows_apps)

    def unfitting(self, task: Task, count: int, rng: Random) -> Sequence[Offer]:
        plan = plan_of(place_in(task.variables["world"])[0])
        found: dict[str, Offer] = {}
        own = write_program(subject_of(plan)).name
        while len(found) < count:
            offer = _offer(plan, rng)
            if offer.name != own:
                found[offer.name] = offer
        return list(found.values())


def _offer(plan: CrudPlan, rng: Random) -> Offer:
    """A skill for another form of task with the same records."""
    form = draw_form(plan.target, rng)
    verb = rng.choice(plan.target.verbs)
    values = draw_values(plan.key, form, plan.target)
    other = msgspec.structs.replace(plan, form=form, verb=verb, values=values)
    program = write_program(subject_of(other))
    skill_id = UUID(int=rng.getrandbits(128))
    return offer_of(skill_id, program, instruction_of(other, rng.randrange(len(values))))
