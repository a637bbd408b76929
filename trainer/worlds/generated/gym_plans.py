"""A scenario in full, derived from its key: the apps, the form of its tasks, and the values of each task."""

import re
from functools import lru_cache, partial
from random import Random
from typing import Literal, TypeAlias, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from app.errors import NotFoundError
from trainer.environment import Split
from trainer.worlds.generated.api_shapes import AXES as SHAPE_AXES
from trainer.worlds.generated.api_shapes import draw_shape
from trainer.worlds.generated.app_names import directory_name, draw_names
from trainer.worlds.generated.domains import Verb, draw_directory, draw_domain
from trainer.worlds.generated.expert_programs import needed_fields
from trainer.worlds.generated.generated_environment import TASKS
from trainer.worlds.generated.gym_apis import GymApi, draw_api
from trainer.worlds.generated.person_names import people
from trainer.worlds.generated.pools import Pool
from trainer.worlds.generated.task_forms import ACTING, Parameter, TaskForm, draw_form

Axis: TypeAlias = Literal["domains", "shapes", "compositions", "phrasings"]

AXES: tuple[Axis, ...] = get_args(Axis)
PEOPLE = 7  # of a task
_WRITES = frozenset(SHAPE_AXES["write"])
_WORLD = re.compile(
    r"(train|validation|test)-(domains|shapes|compositions|phrasings)-(\d{1,12})-([0-2])(?:-x[0-9a-z]{1,16})?"
)


class ScenarioKey(msgspec.Struct, frozen=True):
    """`axis` is what the scenario holds out if its split is not train; everything else is as in training."""

    split: Split
    axis: Axis
    seed: int

    @property
    def text(self) -> str:
        return f"{self.split}-{self.axis}-{self.seed}"

    @property
    def is_lesson(self) -> bool:
        return self.split == "train"

    def pool(self, axis: Axis) -> Pool:
        return self.split if axis == self.axis else "train"

    def random(self, purpose: str) -> Random:
        return Random(f"gym {self.text} {purpose}")


class ScenarioPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    key: ScenarioKey
    form: TaskForm
    main: GymApi  # whose items the tasks are about
    joined: GymApi | None  # that decides which people are meant
    others: tuple[GymApi, ...]  # that no task needs
    verbs: tuple[Verb, Verb]  # of the goal; the second one otherwise
    values: tuple[dict[Parameter, str | int], ...]  # by task
    people: tuple[tuple[str, ...], ...]  # by task

    @property
    def apis(self) -> tuple[GymApi, ...]:
        """In the order of their names, which tells nothing."""
        used = (self.main, *([self.joined] if self.joined else []), *self.others)
        return tuple(sorted(used, key=lambda api: api.name))

    def task_id(self, index: int) -> UUID:
        return uuid5(NAMESPACE_URL, f"gym:{self.key.text}-{index}")

    def world(self, index: int, nonce: str = "") -> str:
        return f"{self.key.text}-{index}" + (f"-x{nonce}" if nonce else "")


def place_in(world: str) -> tuple[ScenarioKey, int]:
    """The scenario and the position of the task whose world has this id. Raises NotFoundError."""
    match = _WORLD.fullmatch(world)
    if match is None:
        raise NotFoundError(f"no world {world[:60]}")
    split, axis, seed, index = match.groups()
    return msgspec.convert({"split": split, "axis": axis, "seed": int(seed)}, ScenarioKey), int(index)


@lru_cache(maxsize=1024)
def plan_of(key: ScenarioKey) -> ScenarioPlan:
    rng = key.random("plan")
    words, shapes = key.pool("domains"), key.pool("shapes")
    form = draw_form(key.pool("compositions"), rng, lesson=key.is_lesson)
    shape = partial(draw_shape, shapes, rng, lesson=key.is_lesson)
    names = draw_names(words, 4, rng)
    domain = draw_domain(words, rng)
    main = draw_api(names[0], domain, shape(unmet=_unmet(form)), rng, words)
    joined = None
    if form.joined == "member":
        directory = directory_name(words, rng)
        joined = draw_api(directory, draw_directory(words, rng), shape(unmet=_WRITES), rng, words)
    elif form.joined == "other":
        joined = draw_api(names[1], draw_domain(words, rng, domain), shape(unmet=_WRITES), rng, words)
    others = tuple(
        draw_api(name, draw_domain(words, rng, domain), draw_shape("train", rng), rng, words)
        for name in names[2 : 2 + rng.randint(0, 2)]
    )
    first, second, *_ = (*rng.sample(domain.verbs, min(2, len(domain.verbs))), domain.verbs[0])
    values, crowds = draw_values(key, form, main, joined)
    return ScenarioPlan(
        key=key,
        form=form,
        main=main,
        joined=joined,
        others=others,
        verbs=(first, second),
        values=values,
        people=crowds,
    )


def _unmet(form: TaskForm) -> frozenset[str]:
    """The values of a shape that programs for tasks of this form do not meet."""
    writes = frozenset() if form.goal in ACTING else _WRITES
    return writes if "person" in needed_fields(form) else writes | {"object"}


def draw_values(
    key: ScenarioKey, form: TaskForm, main: GymApi, joined: GymApi | None
) -> tuple[tuple[dict[Parameter, str | int], ...], tuple[tuple[str, ...], ...]]:
    """The values and the people of each task. No two tasks share a value."""
    rng, pool = key.random("values"), key.pool("domains")
    labels = rng.sample(main.domain.values, TASKS)
    groups = rng.sample(joined.domain.values, TASKS) if joined else [""] * TASKS
    scale = rng.choice((100, 1000, 10_000))
    limits = rng.sample(range(scale // 5, 4 * scale // 5), TASKS)
    months, thresholds = rng.sample(range(2, 13), TASKS), rng.sample(range(1, 5), TASKS)
    everybody = people(pool, PEOPLE * TASKS, rng)
    crowds = tuple(tuple(everybody[at : at + PEOPLE]) for at in range(0, len(everybody), PEOPLE))
    drawn = []
    for index in range(TASKS):
        candidates: dict[Parameter, str | int] = {
            "person": crowds[index][0],
            "label": labels[index],
            "over": limits[index],
            "under": limits[index],
            "before": f"2026-{months[index]:02}-{rng.randint(2, 28):02}",
            "group": groups[index],
            "target": rng.choice([value for value in main.domain.values if value != labels[index]]),
            "threshold": thresholds[index],
        }
        drawn.append({parameter: candidates[parameter] for parameter in form.parameters})
    return tuple(drawn), crowds
