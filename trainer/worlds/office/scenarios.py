"""An unlimited supply of scenarios: a template of the split, a seed and a site for each."""

from random import Random

from app.errors import InvalidError
from app.records import Task
from trainer.environment import Scenario, Split
from trainer.worlds.office.places import TASKS, Place, Variety, place_of
from trainer.worlds.office.site import Site
from trainer.worlds.office.split import templates_of
from trainer.worlds.office.task_templates import TEMPLATES, Template

_DRAWN = 1_000_000  # sites of drawn scenarios; higher ones are used only if they are named
_SITES = 10_000_000


def draw(split: Split, count: int, seed: int, *, site: int | None = None, variety: Variety = "") -> list[Scenario]:
    """`count` scenarios, the same for the same seed; a larger count only appends.

    Every template of the split occurs once before any occurs twice. With `site`, all take place at that site.
    Raises InvalidError for an unknown site.
    """
    if site is not None and not 0 <= site < _SITES:
        raise InvalidError(f"site must be between 0 and {_SITES - 1}, not {site}")
    rng = Random(f"{split} {seed}")
    scenarios: list[Scenario] = []
    while len(scenarios) < count:
        templates = list(templates_of(split))
        rng.shuffle(templates)
        for template in templates[: count - len(scenarios)]:
            drawn = rng.randrange(1, _DRAWN)
            at = drawn if site is None else site
            scenarios.append(scenario(template, rng.randrange(10**9), at, variety))
    return scenarios


def scenario(template: Template, seed: int, site: int, variety: Variety = "") -> Scenario:
    position = TEMPLATES.index(template)
    places = [
        Place(template=position, seed=seed, site=site, index=index, variety=variety) for index in range(TASKS)
    ]
    return Scenario(places[0].scenario, template.name, seed, tuple(map(task_at, places)))


def task_at(place: Place, nonce: str = "") -> Task:
    """The task as the agent receives it, with a world of its own for each nonce."""
    world = {"world": place.world(nonce)}
    return Task(place.task_id, place.instruction, scenario=place.scenario, variables=world)


def place_at(task: Task) -> Place:
    """The place of a task of this environment."""
    return place_of(task.variables["world"])


def site_of(scenario: Scenario) -> Site:
    return Site.of(place_at(scenario.tasks[0]).site)
