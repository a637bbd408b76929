"""Evaluate a policy on held-out scenarios in this process. `over_rest` does the same on a running server."""

import asyncio
from collections.abc import Callable, Sequence

from app.records import Trajectory
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Scenario
from trainer.evaluation.policy_metrics import TaskResult
from trainer.rollouts.episode import Episode, EpisodeRunner, Mix, scenario_chain
from trainer.rollouts.protocols import LibraryFactory


async def evaluate_scenarios(  # noqa: PLR0913  what an evaluation sets
    episode_runner: EpisodeRunner,
    scenarios: Sequence[Scenario],
    *,
    library: bool,
    new_library: LibraryFactory = InMemoryLibrary,
    chain: int | None = None,
    at_once: int = 16,
    report: Callable[[int], object] | None = None,
    mix: Callable[[Scenario], Mix] | None = None,
) -> list[TaskResult]:
    """Run every scenario as a chain with a library of its own, or each task without one.

    `chain` is the number of tasks of each scenario, the first ones; by default all. `report` is called with the
    number of tasks that were done since its last call. `mix` gives what adds skills to those found.
    """
    slots = asyncio.Semaphore(at_once)

    async def evaluate(scenario: Scenario) -> list[TaskResult]:
        async with slots:
            skills = new_library() if library else None
            tasks = scenario_chain(scenario, chain)
            added = mix(scenario) if mix is not None else None
            episodes = await episode_runner.run_chain(tasks, skills, range(len(tasks.tasks)), added)
            if report is not None:
                report(len(episodes))
            size = None if skills is None else len(skills)
            return [task_result(scenario, episode, size) for episode in episodes]

    jobs = [asyncio.create_task(evaluate(each)) for each in scenarios]
    try:
        return [result for results in await asyncio.gather(*jobs) for result in results]
    finally:  # after the first failure the others are stopped: their engine is about to be closed
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def task_result(scenario: Scenario, episode: Episode, library: int | None = None) -> TaskResult:
    """`library` is the number of skills at the end of the task's chain."""
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
        known=episode.verdict.known,
    )


def _written(trajectory: Trajectory) -> set[str]:
    """The functions of its own that ran and returned."""
    uses = (use for turn in trajectory.turns for use in turn.uses)
    return {use.function for use in uses if use.returned and not use.inherited}
