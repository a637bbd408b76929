"""An unlimited supply of tasks: templates of instructions, the split that holds some out, wording and places.

The place of a task determines its site, its instruction and its items; the id of its world encodes the place.
"""

import re
from functools import lru_cache
from random import Random
from typing import Literal, cast
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from app.base.errors import InvalidError, NotFoundError
from app.base.values import Task
from trainer.environment import Scenario, Split
from trainer.worlds.generated.words import Pool, people, pools_of, projects
from trainer.worlds.office.apps import ACTS, APPS, GROUPS, PEOPLE, THRESHOLDS, Act, AppSpec, Field, Role, Site

Verb = Literal["act1", "act2", "act3", "count", "total", "top"]
Selector = Literal["person", "label", "group", "over"]

Variety = Literal["", "-n", "-w", "-nw"]
"""What differs from the fixed office: names are drawn from wide pools, wording is free."""

DEMO = "demo"
TASKS = 3  # of a scenario
VERBS: tuple[Verb, ...] = ("act1", "act2", "act3", "count", "total", "top")
SELECTORS: tuple[Selector, ...] = ("person", "label", "group", "over")

_FIELDS: dict[Selector, Field] = {"person": "person", "group": "person", "label": "label", "over": "number"}
_PHRASES: dict[str, tuple[str, ...]] = {
    "act": (
        "{act} every one of my {nouns} {where}",
        "{act} all {nouns} {where}",
        "please {act} the {nouns} {where}",
    ),
    "count": (
        "how many {nouns} {where} do i have",
        "count my {nouns} {where}",
        "what is the number of {nouns} {where}",
    ),
    "total": (
        "what is the total {measure} of my {nouns} {where}",
        "add up the {measure} of all {nouns} {where}",
        "sum the {measure} of the {nouns} {where}",
    ),
    "top": (
        "{act} the {most} {noun} {where}",
        "{act} only the {most} one of my {nouns} {where}",
        "please {act} the one {most} {noun} {where}",
    ),
}
_WHERE: dict[Selector, str] = {
    "person": "from {value}",
    "label": "in {value}",
    "group": "from my {value}",
    "over": "with {measure} over {value}",
}
_FRAMES: dict[Pool, dict[str, tuple[str, ...]]] = {
    "train": {
        "act": (
            "{Act} every one of my {them}.", "{Act} all {them}.", "Please {act} the {them}.",
            "Can you {act} all my {them}?", "I want you to {act} the {them}.", "{act} all of the {them} please",
            "Find the {them} and {act} them.", "I have {them}. {Act} all of them.",
        ),
        "count": (
            "How many {them} do I have?", "Count my {them}.", "What is the number of {them}?",
            "Tell me how many {them} there are.", "how many {them} are there", "I need the number of my {them}.",
        ),
        "total": (
            "What is the total {measure} of my {them}?", "Add up the {measure} of all {them}.",
            "Sum the {measure} of the {them}.", "Calculate the combined {measure} of my {them}.",
            "I need the {measure} of all {them} in total.", "what's the {measure} of the {them} all together",
        ),
        "top": (
            "{Act} only the {most} of my {them}.", "Of the {them}, {act} the {most}.",
            "Please {act} the {most} one of the {them}.", "Find the {most} of all {them} and {act} it.",
            "Among my {them}, {act} just the {most} one.", "{act} the one {most} {noun} of all {them}",
        ),
    },
    "validation": {
        "act": ("Make sure you {act} each of my {them}.",),
        "count": ("Give me a count of the {them}.",),
        "total": ("How much {measure} do the {them} have in total?",),
        "top": ("Look at the {them} and {act} the {most} one.",),
    },
    "test": {
        "act": (
            "Go through my {nouns} and {act} those {where}.", "It is time to {act} all {them}.",
            "Would you {act} whatever {nouns} I have {where}?", "The {them}: {act} them all.",
        ),
        "count": (
            "Of my {nouns}, how many are there {where}?", "I would like to know the number of {them}.",
            "Work out how many {nouns} I have {where}.",
        ),
        "total": (
            "Put together, what {measure} do my {them} have?",
            "Tell me what the {measure} of the {them} adds up to.",
            "Take all {them} and give me the sum of their {measure}.",
        ),
        "top": (
            "I want the {most} of the {them} and no other: {act} it.",
            "From all {them}, pick the {most} and {act} it.",
            "Which of my {them} is the {most}? {Act} that one.",
        ),
    },
}  # fmt: skip
_FREE_WHERE: dict[Pool, dict[Selector, tuple[str, ...]]] = {
    "train": {
        "person": ("from {v}", "{by} {v}", "that come from {v}", "that are {by} {v}"),
        "label": ("in {v}", "in the {label} {v}", "with the {label} {v}", "whose {label} is {v}", "marked {v}"),
        "group": (
            "from my {v}", "from people in my {v}", "from anyone in my {v}", "{by} someone in my {v}",
            "that come from members of my {v}",
        ),
        "over": (
            "with {measure} over {v}", "with a {measure} above {v}", "whose {measure} is more than {v}",
            "with more than {v} in {measure}", "where the {measure} is greater than {v}",
        ),
    },
    "validation": {
        "person": ("that were {by} {v}",),
        "label": ("listed under {v}",),
        "group": ("from anybody who is in my {v}",),
        "over": ("whose {measure} exceeds {v}",),
    },
    "test": {
        "person": ("that {v} is responsible for", "coming from {v}", "with {v} as the {person}"),
        "label": ("filed under {v}", "that belong to {v}", "where the {label} says {v}"),
        "group": ("from the people of my {v}", "{by} any member of my {v}"),
        "over": ("with a {measure} higher than {v}", "that go beyond {v} in {measure}"),
    },
}  # fmt: skip
_BY = {
    "mail": "sent by",
    "notes": "written by",
    "calendar": "hosted by",
    "music": "performed by",
    "payments": "paid by",
    "files": "uploaded by",
    "todo": "assigned to",
}
_HELD_OUT: dict[Pool, int] = {"test": 40, "validation": 16}
_TAUGHT_AT_LEAST = 2  # templates of the train split that contain each pair of a held-out one
_WORLD = re.compile(r"t(\d{1,3})-s(\d{1,10})-d(\d{1,7})(-n?w|-n)?-([0-2])(?:-x([0-9a-z]{1,16}))?")
_THRESHOLDS = range(15, 86)
_DRAWN = 1_000_000  # sites of drawn scenarios; higher ones are used only if they are named
_SITES = 10_000_000


class Template(msgspec.Struct, frozen=True):
    """A kind of task. All tasks of a scenario have the same template."""

    app: str
    verb: Verb
    selector: Selector

    @property
    def name(self) -> str:
        return f"{self.app}.{self.verb}.{self.selector}"

    @property
    def spec(self) -> AppSpec:
        return APPS[self.app]

    @property
    def role(self) -> Role | None:
        """The role of the operation that changes items; None if nothing is changed."""
        if self.verb == "top":
            return "act1"
        return self.verb if self.verb in ACTS else None

    @property
    def act(self) -> Act | None:
        return self.spec.acts[ACTS.index(self.role)] if self.role else None

    @property
    def values(self) -> tuple[str, ...]:
        """The possible values of the selector."""
        pools = {"person": PEOPLE, "label": self.spec.values, "group": GROUPS, "over": THRESHOLDS}
        return pools[self.selector]

    @property
    def field(self) -> Field:
        """That the selector is about."""
        return _FIELDS[self.selector]

    @property
    def function(self) -> str:
        """The name of the function that solves the task, the same at every site."""
        verb = self.act.verb if self.act and self.verb != "top" else self.verb
        return f"{verb}_{self.spec.nouns}_by_{self.selector}"

    @property
    def phrasings(self) -> tuple[str, ...]:
        """The phrasings of the instruction, with {value} left open."""
        where = _WHERE[self.selector].format(value="{value}", **self.words)
        return tuple(phrase.format(where=where, **self.words) for phrase in _PHRASES[self.asked])

    @property
    def asked(self) -> str:
        """What decides the frames of its wording: one of three acts, or anything else."""
        return "act" if self.verb in ACTS else self.verb

    @property
    def words(self) -> dict[str, str]:
        """For the frames."""
        spec, act = self.spec, self.act.verb if self.act else ""
        return {"noun": spec.noun, "nouns": spec.nouns, "measure": spec.measure, "most": spec.most, "act": act}


# The largest item over a threshold is simply the largest item: nothing would be selected.
TEMPLATES: tuple[Template, ...] = tuple(
    Template(app, verb, selector)
    for app in APPS
    for verb in VERBS
    for selector in SELECTORS
    if (verb, selector) != ("top", "over")
)
_SPLITS = pools_of(
    TEMPLATES,
    lambda each: ((each.app, each.verb), (each.app, each.selector), (each.verb, each.selector)),
    _HELD_OUT,
    _TAUGHT_AT_LEAST,
    "office split",
)


def templates_of(split: Split) -> tuple[Template, ...]:
    """The templates of one split.

    Held-out templates recombine trained ones: each of their pairs (app, verb), (app, selector) and (verb,
    selector) also occurs in the train split.
    """
    return _SPLITS[split]


def word_freely(template: Template, value: str, pool: Pool, rng: Random) -> str:
    """An instruction for the template in words of the pool."""
    spec = template.spec
    words = template.words | {"by": _BY[spec.name], "person": spec.persons[0], "label": spec.labels[0]}
    where = rng.choice(_FREE_WHERE[pool][template.selector]).format(v=value, **words)
    frame = rng.choice(_FRAMES[pool][template.asked])
    return frame.format(Act=words["act"].title(), where=where, them=f"{spec.nouns} {where}", **words)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one scenario at one site. A nonce distinguishes the worlds of several rollouts."""

    template: int  # its position in TEMPLATES
    seed: int
    site: int
    index: int
    variety: Variety = ""

    @property
    def scenario(self) -> str:
        return f"t{self.template}-s{self.seed}-d{self.site}{self.variety}"

    @property
    def kind(self) -> Template:
        return TEMPLATES[self.template]

    @property
    def key(self) -> str:
        """What the world is drawn from: the same in every variety, so that these compare like with like."""
        return f"t{self.template}-s{self.seed}-d{self.site}-{self.index}"

    @property
    def people(self) -> tuple[str, ...]:
        return _people(self.seed, _pool(self.kind)) if "n" in self.variety else PEOPLE

    def labels(self, app: str) -> tuple[str, ...]:
        own = APPS[app].values
        return _labels(app, len(own), self.seed, _pool(self.kind)) if "n" in self.variety else own

    def values(self, selector: Selector) -> tuple[str, ...]:
        """The possible values of a selector."""
        if selector == "group":
            return GROUPS
        if selector == "over":
            return _thresholds(self.seed) if "n" in self.variety else THRESHOLDS
        return self.people if selector == "person" else self.labels(self.kind.app)

    @property
    def value(self) -> str:
        """The value of the task's selector, different for each task of the scenario."""
        values = self.values(self.kind.selector)
        return Random(f"values {self.template} {self.seed}").sample(values, TASKS)[self.index]

    @property
    def instruction(self) -> str:
        rng = Random(f"phrasing {self.key}")
        if "w" in self.variety:
            return word_freely(self.kind, self.value, _pool(self.kind), rng)
        return rng.choice(self.kind.phrasings).format(value=self.value)

    @property
    def task_id(self) -> UUID:
        return uuid5(NAMESPACE_URL, f"office:{self.world()}")

    def world(self, nonce: str = "") -> str:
        return f"{self.scenario}-{self.index}" + (f"-x{nonce}" if nonce else "")


def place_of(world: str) -> Place:
    """The place that a world's id encodes. Raises NotFoundError for an id that encodes none."""
    match = _WORLD.fullmatch(world)
    if match is None or int(match[1]) >= len(TEMPLATES):
        raise NotFoundError(f"no world {world[:60]}, ask /admin/scenarios for some")
    variety = cast(Variety, match[4] or "")
    return Place(
        template=int(match[1]), seed=int(match[2]), site=int(match[3]), index=int(match[5]), variety=variety
    )


@lru_cache(maxsize=512)
def _people(seed: int, pool: Pool) -> tuple[str, ...]:
    return tuple(people(pool, len(PEOPLE), Random(f"people {seed}")))


@lru_cache(maxsize=512)
def _labels(app: str, count: int, seed: int, pool: Pool) -> tuple[str, ...]:
    return tuple(projects(pool, count, Random(f"labels {app} {seed}")))


def _thresholds(seed: int) -> tuple[str, ...]:
    return tuple(map(str, Random(f"thresholds {seed}").sample(_THRESHOLDS, len(THRESHOLDS))))


@lru_cache
def _pool(kind: Template) -> Pool:
    pools: tuple[Pool, ...] = ("train", "validation", "test")
    return next(pool for pool in pools if kind in templates_of(pool))


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
