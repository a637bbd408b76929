"""Experience from what was served: the way from the tables to rewarded, or imitable, trajectories.

Chains come from `chains`, comparisons from `groups`, the choice for supervised steps from `best`.
"""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app import plugins
from app.records import Trajectory
from app.run_settings import RunSettings
from trainer.experience.best import choose
from trainer.experience.chain_rewards import earned
from trainer.experience.comparison import compare
from trainer.experience.filters import BaseModel
from trainer.experience.records import Drop, Kept, Served, tally
from trainer.experience.steps import in_steps
from trainer.experience.window import read_window
from trainer.sage.advantages import ScoredRollout

_SAMPLED = 1.0  # engines report logprobs as they are at this temperature, whatever they sample at


class Logged(msgspec.Struct, frozen=True):
    """What a run of kind `logged` learns from."""

    steps: list[list[ScoredRollout]]
    kept: Kept


class Best(msgspec.Struct, frozen=True):
    """What a run of kind `sft` imitates."""

    trajectories: list[Trajectory]
    kept: Kept


async def read_logged(session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel) -> Logged:
    """Rewarded trajectories of the window that the settings name, dealt out to as many steps as they name.

    Raises InvalidError that says what is missing where nothing is left to learn from.
    """
    window = await read_window(session, project_id, settings, base)
    tasks = [_judged(task, settings.max_staleness) for task in window.served]
    totals = earned(tasks, window.makers, plugins.load("sage.rewards", settings.reward))
    compared = compare(tasks, totals, window.families)
    rewarded = [each for _, each in compared.kept]
    steps = in_steps(rewarded, settings.pairs, settings.steps, settings.seed)
    groups = {each.group for step in steps for each in step}
    taken = [(served, each) for served, each in compared.kept if each.group in groups]
    beyond = [Drop.BEYOND] * (len(rewarded) - len(taken))
    grouped = [(served, each.group) for served, each in taken]
    kept = tally(window.tasks, grouped, [*window.dropped, *compared.dropped, *beyond])
    return Logged(steps, kept)


async def read_best(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel, *, count: int = 4
) -> Best:
    """The `count` best successes of each family, with skills and without. In an example neither staleness nor
    sampling at another temperature is a fault.

    Raises InvalidError that says what is missing where nothing succeeded.
    """
    window = await read_window(session, project_id, settings, base)
    chosen = choose(window.served, window.families, frozenset(window.makers.values()), count)
    kept = tally(window.tasks, chosen.kept, [*window.dropped, *chosen.dropped])
    return Best([served.trajectory for served, _ in chosen.kept], kept)


def _judged(task: Served, limit: int) -> Served:
    """What is no fault in an example. What the task did still counts for those whose skills it used."""
    if task.staleness > limit:
        return msgspec.structs.replace(task, fault=Drop.STALE)
    if task.fault is None and task.trajectory.temperature != _SAMPLED:
        return msgspec.structs.replace(task, fault=Drop.NOT_SAMPLED)
    return task
