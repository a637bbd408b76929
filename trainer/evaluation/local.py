"""Lets a policy sit held-out scenarios, in worlds of this process. `exam.py` does the same over REST."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from app.records import Trajectory
from app.skills.memory import MemoryLibrary
from trainer.environment import Scenario
from trainer.evaluation.metrics import TaskResult
from trainer.rollouts.episode import Episode, EpisodeRunner
from trainer.rollouts.protocols import LibraryFactory


async def examine(
    episode_runner: EpisodeRunner,
    scenarios: Sequence[Scenario],
    *,
    library: bool,
    new_library: LibraryFactory = MemoryLibrary,
    chain: int | None = None,
    at_once: int = 16,
    report: Callable[[int], object] | None = None,
) -> list[TaskResult]:
    """Every scenario as a chain with a library of its own, or each task alone. `report` hears of tasks done.

    `chain` is how many tasks of each scenario are sat, the first ones; by default all.
    """
    places = asyncio.Semaphore(at_once)

    async def sit(scenario: Scenario) -> list[TaskResult]:
        async with places:
            shelf = new_library() if library else None
            episodes = await episode_runner.run_chain(_first(scenario, chain), shelf)
            if report is not None:
                report(len(episodes))
            size = None if shelf is None else len(shelf)
            return [result_of(scenario, episode, size) for episode in episodes]

    sitting = [asyncio.create_task(sit(each)) for each in scenarios]
    try:
        return [result for results in await asyncio.gather(*sitting) for result in results]
    finally:  # the first failure ends the others: the engine they ask is about to be closed
        for each in sitting:
            each.cancel()
        await asyncio.gather(*sitting, return_exceptions=True)


def result_of(scenario: Scenario, episode: Episode, library: int | None = None) -> TaskResult:
    """`library` is how many skills the task's chain ended with."""
    trajectory = episode.trajectory
    used = tuple(offer.name for offer in trajectory.used())
    return TaskResult(
        scenario=scenario.id,
        template=scenario.template,
        success=episode.verdict.success,
        turns=len(trajectory.turns),
        tokens=trajectory.generated_tokens,
        stop=trajectory.stop.value,
        offered=len(trajectory.offered),
        used=len(used),
        wrote=len(_written(trajectory)),
        names=used,
        library=library,
    )


def _first(scenario: Scenario, chain: int | None) -> Scenario:
    return scenario if chain is None else msgspec.structs.replace(scenario, tasks=scenario.tasks[:chain])


def _written(trajectory: Trajectory) -> set[str]:
    """Functions of its own that ran and returned."""
    uses = (use for turn in trajectory.turns for use in turn.uses)
    return {use.function for use in uses if use.returned and not use.inherited}
