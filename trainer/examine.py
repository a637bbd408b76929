"""Lets a policy sit held-out scenarios, in worlds of this process. `exam.py` does the same over REST."""

import asyncio
from collections.abc import Callable, Sequence

from app.records import Trajectory
from app.skills.memory import MemoryLibrary
from trainer.collect import Outcome, Practice
from trainer.environment import Scenario
from trainer.evaluate import TaskResult


async def examine(
    practice: Practice,
    scenarios: Sequence[Scenario],
    *,
    library: bool,
    at_once: int = 16,
    report: Callable[[int], object] | None = None,
) -> list[TaskResult]:
    """Every scenario as a chain with a library of its own, or each task alone. `report` hears of tasks done."""
    places = asyncio.Semaphore(at_once)

    async def sit(scenario: Scenario) -> list[TaskResult]:
        async with places:
            outcomes = await practice.run_chain(scenario, MemoryLibrary() if library else None)
            if report is not None:
                report(len(outcomes))
            return [result_of(scenario, outcome) for outcome in outcomes]

    return [result for results in await asyncio.gather(*map(sit, scenarios)) for result in results]


def result_of(scenario: Scenario, outcome: Outcome) -> TaskResult:
    trajectory = outcome.trajectory
    return TaskResult(
        scenario=scenario.id,
        template=scenario.template,
        success=outcome.verdict.success,
        turns=len(trajectory.turns),
        tokens=trajectory.generated_tokens,
        stop=trajectory.stop.value,
        offered=len(trajectory.offered),
        used=sum(1 for _ in trajectory.used()),
        wrote=len(_written(trajectory)),
    )


def _written(trajectory: Trajectory) -> set[str]:
    """Functions of its own that ran and returned."""
    uses = (use for turn in trajectory.turns for use in turn.uses)
    return {use.function for use in uses if use.returned and not use.inherited}
