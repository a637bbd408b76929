"""Groups of chains: the same tasks, rolled out G times in parallel, each time with a library of its own.

Skills of other scenarios may be offered beside those that fit, as a grown library offers them. A policy that
meets only fitting skills learns to call whatever it is offered. Served from a grown library, that does harm:
with two unfitting skills beside the fitting one the gain of training was gone.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

import msgspec
import structlog

from app.apis.calls.skill_guard import SkillManifest
from app.base import plugins
from app.base.errors import WorldError
from app.base.files import write_atomically
from app.base.run_settings import RunSettings
from app.base.values import Offer
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.similarity import NgramIndex
from trainer.environment import Environment, Scenario, Split
from trainer.rewards import chain_step, scored_rollout
from trainer.rollouts.episode import Chain, Episode, EpisodeRunner, LibraryFactory, Mix
from trainer.rollouts.memories import NewMemory
from trainer.sage.advantages import ScoredRollout
from trainer.sage.chains import nearest_chain, sample_chain
from trainer.sage.reward import ChainStep, RewardRule, known_rewards, with_use_values

log = structlog.get_logger()

_WITHOUT_LABELS = ("query_ngram", "query_embedding", "skill_embedding")  # of the ways to find skills
_CROWDING = 2  # skills of other scenarios at most, within the three that a task is offered
_MOST = 500  # skills to draw from, the newest


class CrowdSkill(msgspec.Struct, frozen=True):
    """A skill, and the scenario of the task that wrote it."""

    scenario: str | None
    offer: Offer
    manifest: SkillManifest | None = None  # None: it may call anything


class Crowd:
    """The skills to draw from: those of the project's library, then those that the run's own rollouts wrote."""

    def __init__(self, skills: Iterable[CrowdSkill] = ()) -> None:
        self._skills: dict[tuple[str | None, str], CrowdSkill] = {}  # by scenario and name, oldest first
        self.add(skills)

    def __len__(self) -> int:
        return len(self._skills)

    def add(self, skills: Iterable[CrowdSkill]) -> None:
        for skill in skills:
            key = skill.scenario, skill.offer.name
            self._skills.pop(key, None)
            self._skills[key] = skill
        for key in list(self._skills)[: max(0, len(self._skills) - _MOST)]:
            del self._skills[key]

    def draw(self, scenario: str, count: int, rng: Random) -> list[Offer]:
        """At most `count` skills of other scenarios, each with a name of its own, from none to all of them."""
        others = {name: skill.offer for (origin, name), skill in self._skills.items() if origin != scenario}
        wanted = min(rng.randint(0, count), len(others))
        return rng.sample(list(others.values()), wanted)

    @property
    def manifests(self) -> dict[UUID, SkillManifest]:
        """Of those that have one, by the skill's id."""
        skills = self._skills.values()
        return {each.offer.skill_id: each.manifest for each in skills if each.manifest is not None}

    def save(self, path: Path) -> None:
        write_atomically(msgspec.msgpack.encode(list(self._skills.values())), path)

    @classmethod
    def restore(cls, path: Path, skills: Iterable[CrowdSkill] = ()) -> "Crowd":
        """The one that was saved; else a new one with `skills`."""
        return cls(msgspec.msgpack.decode(path.read_bytes(), type=list[CrowdSkill]) if path.exists() else skills)


def crowded(found: Sequence[Offer], crowd: Sequence[Offer], limit: int, rng: Random) -> list[Offer]:
    """The skills found, and as much of the crowd as the limit leaves room for, at places drawn at random."""
    names = {offer.name for offer in found}
    offers = list(found)
    for each in [offer for offer in crowd if offer.name not in names][: max(0, limit - len(found))]:
        offers.insert(rng.randint(0, len(offers)), each)
    return offers


class ChainRollout(msgspec.Struct, frozen=True):
    """One rollout of a chain, with the reward of each task."""

    scenario: Scenario
    episodes: tuple[Episode, ...]
    scored: tuple[ScoredRollout, ...]


class Collected(NamedTuple):
    """The rollouts of a step, in the order of its chains, and how many are missing because their world failed."""

    rollouts: list[ChainRollout]
    failed: int


@dataclass(frozen=True)
class GroupCollector:
    """Rolls out groups of chains by the settings of a run."""

    runner: EpisodeRunner
    settings: RunSettings
    new_library: LibraryFactory
    _: KW_ONLY
    crowd: Crowd | None = None  # None: tasks are offered what fits alone
    new_memory: NewMemory | None = None  # None: nothing is remembered but skills
    report: Callable[[int, int], object] | None = None  # chains rolled out, and of how many
    at_once: int = 128  # chains in flight: twice an engine's batch, so that it stays full while code runs

    async def collect(self, chains: Sequence[Chain], seed: int) -> Collected:
        """G rollouts of each chain. A world that fails costs its own alone. Raises WorldError if all fail."""
        rule: RewardRule = plugins.load("sage.rewards", self.settings.reward)
        slots = asyncio.Semaphore(self.at_once)
        done, total = count(1), len(chains) * self.settings.group
        failures: list[WorldError] = []

        async def roll_out(number: int, member: int) -> list[Episode] | None:
            async with slots:
                chain, rng = chains[number], Random(f"{seed} {number} {member}")
                library = self.new_library() if self.settings.skills else None
                seeds = [rng.getrandbits(31) for _ in chain.tasks]
                mix = self._mix(chain, library, f"crowd {seed} {number}") if library is not None else None
                memory = self.new_memory() if self.new_memory is not None else None
                try:
                    return await self.runner.run_chain(chain, library, seeds, mix, memory)
                except WorldError as error:
                    log.exception("a rollout is left out")
                    failures.append(error)
                    return None
                finally:
                    if self.report is not None:
                        self.report(next(done), total)

        async def roll_out_group(number: int) -> list[ChainRollout]:
            scenario = chains[number].scenario
            rolled_out = await asyncio.gather(*(roll_out(number, each) for each in range(self.settings.group)))
            return _scored_group(scenario, [*filter(None, rolled_out)], rule, f"{number} {scenario.id}")

        groups = await asyncio.gather(*map(roll_out_group, range(len(chains))))
        rollouts = [rollout for group in groups for rollout in group]
        if not rollouts:
            raise failures[0]
        return Collected(rollouts, len(failures))

    def _mix(self, chain: Chain, library: InMemoryLibrary, seed: str) -> Mix:
        """Adds the same crowd to a position in all rollouts of the group, so that these can be compared."""

        def mix(position: int, found: list[Offer]) -> list[Offer]:
            if self.crowd is None:
                return found
            rng = Random(f"{seed} {position}")
            crowd = self.crowd.draw(chain.scenario.label, _CROWDING, rng)
            return crowded(found, crowd, library.limit, rng)

        return mix


def _scored_group(
    scenario: Scenario, chains: Sequence[Sequence[Episode]], rule: RewardRule, group: str
) -> list[ChainRollout]:
    """The rollouts of one group. A task is compared with those at the same position of the other chains, as far as
    their results are known.
    """
    placed = [(position, episode) for episodes in chains for position, episode in enumerate(episodes)]
    steps = iter(with_use_values([_step(episode) for _, episode in placed], [position for position, _ in placed]))
    rollouts = []
    for episodes in chains:
        rewards = known_rewards(rule, [next(steps) for _ in episodes])
        scored = tuple(
            scored_rollout(episode.trajectory, reward, group, position)
            for position, (episode, reward) in enumerate(zip(episodes, rewards, strict=True))
            if reward is not None
        )
        rollouts.append(ChainRollout(scenario, tuple(episodes), scored))
    return rollouts


def _step(episode: Episode) -> ChainStep:
    verdict = episode.verdict
    return chain_step(
        episode.trajectory,
        verdict.fraction,
        success=verdict.known and verdict.success,
        creditable=episode.creditable,
        known=verdict.known,
    )


def draw_chains(environment: Environment, split: Split, settings: RunSettings, step: int) -> list[Chain]:
    """The chains of one step, determined by the seed and the step.

    A chain is sampled from the tasks of one scenario. Where skills are found without labels, these are not used
    here either: each chain begins with a task of another scenario, and the tasks with the nearest instructions
    follow it.
    """
    rng = Random(f"chains {settings.seed} {step}")
    scenarios = environment.scenarios(split, settings.pairs, rng.randrange(2**31))
    if settings.retrieval not in _WITHOUT_LABELS:
        return [Chain(each, sample_chain(each.tasks, settings.chain, rng), each.label) for each in scenarios]
    tasks = [task for scenario in scenarios for task in scenario.tasks]
    index: NgramIndex[int] = NgramIndex()
    for number, task in enumerate(tasks):
        index.add(number, task.instruction)
    chains = []
    for scenario in scenarios:
        first = rng.choice(scenario.tasks)
        ranked = [tasks[number] for number, _ in index.search(first.instruction, settings.chain)]
        chains.append(Chain(scenario, nearest_chain(first, ranked, settings.chain), None))
    return chains
