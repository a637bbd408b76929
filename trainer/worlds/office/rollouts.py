"""Rollouts of the scripted expert: real services, real sandbox, and skills extracted and checked as in serving.

Each episode holds a whole trajectory as serving would have recorded it, scored by the verifier. Among the
skills offered may be distractors, which resemble what a task needs but do not fit, as a grown library has
them.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from uuid import UUID

from app.agent.prompts import Compact, Profile
from app.agent.rollout import Agent, RolloutLimits
from app.base.errors import InvalidError
from app.base.values import Offer, Policy, Task
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.protocol import Sandbox
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Environment, Scenario
from trainer.lessons.experts import ExpertEngine, Part
from trainer.rollouts.episode import Episode, EpisodeRunner, ExpertContext, Mix
from trainer.rollouts.groups import crowded
from trainer.worlds.office import solution
from trainer.worlds.office.apps import Site
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import ExpertScript, Faults
from trainer.worlds.office.scenarios import Template, place_at, site_of, templates_of

LIMITS = RolloutLimits(turns=8)
_AT_ONCE = 16
_NEAR = 0.7  # the share that differs from the task's template in one respect only
_OFFERED = 3


@asynccontextmanager
async def load_expert(  # noqa: PLR0913 - the options of the plug-in
    context: ExpertContext,
    *,
    unprepared: Part = 0.0,
    page: Part = 0.0,
    synonym: Part = 0.0,
    glance: Part = 0.0,
    inline: Part = 0.0,
    ignore: Part = 0.0,
    trust: Part = 0.0,
    notes: Part = 0.0,
    crowded: Part = 0.0,
    withheld: Part = 0.0,
) -> AsyncIterator["ScriptedExpert"]:
    """The plug-in `scripted`. `crowded` is the share of tasks that are also offered skills that do not fit,
    `withheld` of those whose own skills are not offered; the others are the probabilities in `Faults`.

    Raises InvalidError for an environment that is not the office.
    """
    if not isinstance(context.environment, OfficeEnvironment):
        raise InvalidError(
            "the scripted expert knows the environment office only: name that one, or another expert"
        )
    faults = Faults(
        unprepared=unprepared,
        page=page,
        synonym=synonym,
        glance=glance,
        inline=inline,
        ignore=ignore,
        notes=notes,
        trust=trust,
    )
    runner = ScriptRunner(
        context.environment,
        context.tokenizer,
        context.sandbox,
        context.profile,
        crowding=crowded,
        withheld=withheld,
    )
    yield ScriptedExpert(runner, faults, context.seed)


@dataclass(frozen=True)
class ScriptRunner:
    """Runs the script in real rollouts, recorded in a tokenizer and a profile."""

    environment: Environment
    tokenizer: ChatTokenizer
    sandbox: Sandbox
    profile: Profile = Compact()  # noqa: RUF009 - frozen
    crowding: float = 0.0  # the shares as in `load_expert`
    withheld: float = 0.0

    async def play(self, scenario: Scenario, faults: Faults, rng: Random) -> list[Episode]:
        """One pass over the tasks of a scenario in order, each with the skills that the earlier ones left."""
        library, episodes = InMemoryLibrary(), []
        for task in scenario.tasks:
            offers = await self._offers(library, scenario, task, rng)
            place = place_at(task)
            script = ExpertScript(site_of(scenario), place.kind, place.value, offers, rng=rng, faults=faults)
            engine = ExpertEngine(script, self.tokenizer)
            agent = Agent(engine, self.tokenizer, self.profile, self.sandbox, LIMITS)
            episode_runner = EpisodeRunner(agent, self.environment, Policy("expert"))
            episodes.append(await episode_runner.run_task(scenario, task, library, offers, hooks=engine))
        return episodes

    async def _offers(self, library: InMemoryLibrary, scenario: Scenario, task: Task, rng: Random) -> list[Offer]:
        withheld = self.withheld > 0 and rng.random() < self.withheld
        found = [] if withheld else await library.find(task.instruction, scenario.id)
        if rng.random() < 1 - self.crowding:
            return found
        others = distractors(place_at(task).kind, site_of(scenario), rng, count=rng.randint(1, _OFFERED))
        return [*found, *others][:_OFFERED]


@dataclass(frozen=True)
class ScriptedExpert:
    """Implements `Expert`. The same seed gives the same demonstrations."""

    runner: ScriptRunner
    faults: Faults
    seed: int
    deterministic: bool = True

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:  # noqa: ARG002  it has none
        return await self.runner.play(scenario, self.faults, _random(self.seed, scenario))


async def demonstrate(
    runner: ScriptRunner, scenarios: Sequence[Scenario], faults: Faults, seed: int, *, at_once: int = _AT_ONCE
) -> list[Episode]:
    """The episodes of these scenarios in their order, failures included; the same for the same seed."""
    places = asyncio.Semaphore(at_once)

    async def chain(scenario: Scenario) -> list[Episode]:
        async with places:
            return await runner.play(scenario, faults, _random(seed, scenario))

    return [each for chain in await asyncio.gather(*map(chain, scenarios)) for each in chain]


def crowd_around(scenario: Scenario) -> Mix:
    """Two of them beside what each task of the scenario is offered, as far as three offers leave room."""
    kind, site = place_at(scenario.tasks[0]).kind, site_of(scenario)

    def mix(position: int, found: list[Offer]) -> list[Offer]:
        rng = Random(f"crowd {scenario.id} {position}")
        return crowded(found, distractors(kind, site, rng, 2), 3, rng)

    return mix


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


def _random(seed: int, scenario: Scenario) -> Random:
    return Random(f"demonstrate {seed} {scenario.id}")
