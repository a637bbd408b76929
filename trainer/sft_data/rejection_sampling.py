"""Rejection sampling: an expert works through scenarios, and its successes become chats to imitate."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.agent.prompt_profiles import Profile
from app.apis.builtin import with_builtins
from app.apis.listed_app import listed_apps
from app.datasets.chat_lines import ChatRecord
from app.errors import AppError
from app.records import Json
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import Episode
from trainer.sft_data.answer_tokens import UntokenizableError
from trainer.sft_data.chat_records import record_of, to_line
from trainer.sft_data.collection_journal import CollectionEntry, CollectionJournal
from trainer.sft_data.selection import KeepRule, select

UNTOKENIZABLE = "an answer has no tokens of the policy"
Play = Callable[[Scenario, float], Awaitable[list[Episode]]]
"""One pass over the tasks of a scenario, at a temperature."""


@dataclass(frozen=True, kw_only=True)
class RejectionSampler:
    """Samples an expert at rising temperatures until a pass over a scenario leaves something to keep."""

    environment: Environment
    profile: Profile  # of the policy that will imitate
    play: Play
    temperatures: Sequence[float]  # in order
    rule: KeepRule
    source: str  # the expert's name, stored with each chat
    at_once: int = 8  # scenarios

    async def run(
        self, scenarios: Sequence[Scenario], journal: CollectionJournal, report: Callable[[], object]
    ) -> None:
        """Sample all scenarios that the journal does not hold yet; `report` is called for each.

        Raises the first EngineError or SandboxError; unfinished scenarios are then abandoned, finished ones kept.
        """
        slots = asyncio.Semaphore(self.at_once)

        async def sample(index: int, scenario: Scenario) -> None:
            async with slots:
                journal.add(await self._sample(index, scenario))
                report()

        try:
            async with asyncio.TaskGroup() as group:
                for index, scenario in enumerate(scenarios):
                    if index not in journal.entries:
                        group.create_task(sample(index, scenario))
        except* AppError as failures:
            raise failures.exceptions[0] from None

    async def _sample(self, index: int, scenario: Scenario) -> CollectionEntry:
        dropped, tried, kept = Counter[str](), 0, list[str]()
        for temperature in self.temperatures:
            try:
                episodes = await self.play(scenario, temperature)
            except UntokenizableError:
                tried, dropped = tried + 1, dropped + Counter({UNTOKENIZABLE: 1})
                continue
            selection = select(episodes, self.rule)
            tried, dropped = tried + len(episodes), dropped + Counter(selection.dropped)
            if selection.kept:
                records = [await self._record(scenario, each, temperature) for each in selection.kept]
                kept = [to_line(record).decode() for record in records]
                break
        return CollectionEntry(index=index, tried=tried, dropped=dict(dropped), kept=kept)

    async def _record(self, scenario: Scenario, episode: Episode, temperature: float) -> ChatRecord:
        trajectory = episode.trajectory
        async with self.environment.open(scenario, trajectory.task) as world:
            apps = listed_apps(with_builtins(world.catalog))
        opening = self.profile.opening(trajectory.task, trajectory.offered, apps)
        about: dict[str, Json] = {
            "template": scenario.template,
            "score": episode.verdict.fraction,
            "source": self.source,
            "temperature": temperature,
        }
        return record_of(trajectory, opening, about)
