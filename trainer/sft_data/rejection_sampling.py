"""Collects trajectories to imitate, scenario by scenario: played by an expert, judged by the environment."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.agent.prompt import Profile
from app.apis.builtin import with_builtins
from app.errors import AppError
from app.records import Json
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import Episode
from trainer.sft_data.answer_tokens import UnsayableError
from trainer.sft_data.chat_records import ChatRecord, record_of, to_line
from trainer.sft_data.collection_journal import Entry, Journal
from trainer.sft_data.selection import Rule, select

UNSAYABLE = "the policy could not say an answer"
Play = Callable[[Scenario, float], Awaitable[list[Episode]]]
"""One pass over the tasks of a scenario, at a temperature."""


@dataclass(frozen=True, kw_only=True)
class Harvest:
    """How to collect."""

    environment: Environment
    profile: Profile  # of the policy that will imitate
    play: Play
    temperatures: Sequence[float]  # tried in order, until a pass leaves something to keep
    rule: Rule
    source: str  # who plays, for the record
    at_once: int = 8  # scenarios

    async def collect(self, scenarios: Sequence[Scenario], journal: Journal, report: Callable[[], object]) -> None:
        """All scenarios that the journal does not hold yet; `report` hears of each that is done.

        Raises the first EngineError or SandboxError; what is under way is then given up, what is done stays.
        """
        places = asyncio.Semaphore(self.at_once)

        async def one(index: int, scenario: Scenario) -> None:
            async with places:
                journal.add(await self._reap(index, scenario))
                report()

        try:
            async with asyncio.TaskGroup() as group:
                for index, scenario in enumerate(scenarios):
                    if index not in journal.entries:
                        group.create_task(one(index, scenario))
        except* AppError as failures:
            raise failures.exceptions[0] from None

    async def _reap(self, index: int, scenario: Scenario) -> Entry:
        dropped, tried, kept = Counter[str](), 0, list[str]()
        for temperature in self.temperatures:
            try:
                episodes = await self.play(scenario, temperature)
            except UnsayableError:
                tried, dropped = tried + 1, dropped + Counter({UNSAYABLE: 1})
                continue
            selected = select(episodes, self.rule)
            tried, dropped = tried + len(episodes), dropped + Counter(selected.dropped)
            if selected.kept:
                records = [await self._record(scenario, each, temperature) for each in selected.kept]
                kept = [to_line(record).decode() for record in records]
                break
        return Entry(index=index, tried=tried, dropped=dict(dropped), kept=kept)

    async def _record(self, scenario: Scenario, episode: Episode, temperature: float) -> ChatRecord:
        trajectory = episode.trajectory
        async with self.environment.open(scenario, trajectory.task) as world:
            apps = {app.name: app.description for app in with_builtins(world.catalog).apps.values()}
        opening = self.profile.opening(trajectory.task, trajectory.offered, apps)
        about: dict[str, Json] = {
            "template": scenario.template,
            "score": episode.verdict.fraction,
            "source": self.source,
            "temperature": temperature,
        }
        return record_of(trajectory, opening, about)
