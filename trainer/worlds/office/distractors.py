"""Skills that resemble what a task needs but do not fit, as a grown library offers them."""

from random import Random
from uuid import UUID

from app.records import Offer
from trainer.environment import Scenario
from trainer.rollouts.crowd import crowded
from trainer.rollouts.episode import Mix
from trainer.worlds.office import solution
from trainer.worlds.office.scenarios import place_at, site_of
from trainer.worlds.office.site import Site
from trainer.worlds.office.split import templates_of
from trainer.worlds.office.task_templates import Template

_NEAR = 0.7  # the share that differs from the task's template in one respect only


def distractors(own: Template, site: Site, rng: Random, count: int) -> list[Offer]:
    """Correct solutions, at this site, of other templates of the train split, all different."""
    others = [template for template in templates_of("train") if template != own]
    near = [template for template in others if _shared(template, own) == 2]
    chosen: list[Template] = []
    while len(chosen) < count:
        template = rng.choice(near if near and rng.random() < _NEAR else others)
        if template not in chosen:
            chosen.append(template)
    return [_offer(template, site, rng) for template in chosen]


def crowd_around(scenario: Scenario) -> Mix:
    """Two of them beside what each task of the scenario is offered, as far as three offers leave room."""
    kind, site = place_at(scenario.tasks[0]).kind, site_of(scenario)

    def mix(position: int, found: list[Offer]) -> list[Offer]:
        rng = Random(f"crowd {scenario.id} {position}")
        return crowded(found, distractors(kind, site, rng, 2), 3, rng)

    return mix


def _shared(one: Template, other: Template) -> int:
    return (one.app == other.app) + (one.verb == other.verb) + (one.selector == other.selector)


def _offer(template: Template, site: Site, rng: Random) -> Offer:
    return Offer(
        skill_id=UUID(int=rng.getrandbits(128)),
        name=template.function,
        version=1,
        signature=solution.signature(template),
        source=solution.function(template, site),
        instruction=rng.choice(template.phrasings).format(value=rng.choice(template.values)),
    )
