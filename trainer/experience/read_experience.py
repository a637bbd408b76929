"""Read logged experience from the tables, as rollouts with rewards or as trajectories to imitate."""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.plugins import registry
from app.records import Trajectory
from app.run_settings import TRAINED_TEMPERATURE, RunSettings
from trainer.experience.best_tasks import select_best
from trainer.experience.chain_rewards import compute_rewards
from trainer.experience.data_summary import DataSummary, summarize
from trainer.experience.drop_reasons import DropReason
from trainer.experience.filters import BaseModel
from trainer.experience.grouping import group_tasks
from trainer.experience.scored_task import ScoredTask
from trainer.experience.steps import split_into_steps
from trainer.experience.use_trials import read_use_values
from trainer.experience.window import read_window
from trainer.sage.advantages import ScoredRollout


class LoggedExperience(msgspec.Struct, frozen=True):
    """The data of a run of kind `logged`."""

    start: str  # the weights that it was read for, as in `BaseModel`
    steps: list[list[ScoredRollout]]
    data: DataSummary


class BestExperience(msgspec.Struct, frozen=True):
    """The data of a run of kind `sft`."""

    trajectories: list[Trajectory]
    data: DataSummary


async def read_logged(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel
) -> LoggedExperience:
    """The scored rollouts of the window that the settings name, split into at most as many steps as they name.

    Raises InvalidError with advice where nothing is left to learn from.
    """
    window = await read_window(session, project_id, settings, base)
    tasks = [_check_on_policy(task, settings.max_staleness) for task in window.tasks]
    rule = registry.load("sage.rewards", settings.reward)
    known = await read_use_values(session, project_id, window)
    rewards = compute_rewards(tasks, window.scenarios, window.makers, rule, known)
    grouped = group_tasks(tasks, rewards, window.scenarios)
    rollouts = [rollout for _, rollout in grouped.kept]
    steps = split_into_steps(rollouts, settings.pairs, settings.steps, settings.seed)
    in_steps = {rollout.group for step in steps for rollout in step}
    kept = [(task, rollout.group) for task, rollout in grouped.kept if rollout.group in in_steps]
    beyond = [DropReason.BEYOND_STEPS] * (len(rollouts) - len(kept))
    data = summarize(window.ended, kept, [*window.dropped, *grouped.dropped, *beyond])
    return LoggedExperience(base.start, steps, data)


async def read_best(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel, *, count: int = 4
) -> BestExperience:
    """The `count` best successes of each scenario, with skills offered and without.

    An example may be stale, and sampled at any temperature. Raises InvalidError with advice where nothing
    succeeded.
    """
    window = await read_window(session, project_id, settings, base)
    best = select_best(window.tasks, window.scenarios, frozenset(window.makers.values()), count)
    data = summarize(window.ended, best.kept, [*window.dropped, *best.dropped])
    return BestExperience([task.trajectory for task, _ in best.kept], data)


def _check_on_policy(task: ScoredTask, max_staleness: int) -> ScoredTask:
    """The task, marked unusable if its samples are too stale, of another temperature, or misled by a refusal."""
    if task.unusable is not None:
        return task
    if task.staleness > max_staleness:
        return msgspec.structs.replace(task, unusable=DropReason.STALE)
    if task.trajectory.temperature != TRAINED_TEMPERATURE:
        return msgspec.structs.replace(task, unusable=DropReason.WRONG_TEMPERATURE)
    if task.trajectory.kept_back:
        return msgspec.structs.replace(task, unusable=DropReason.KEPT_BACK)
    return task
