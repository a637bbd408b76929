"""The tasks of a project that ended in a window of time, with everything that rewards and filters need."""

import asyncio
from collections import defaultdict
from collections.abc import Container, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import judgements, releases, training_data
from app.db.tables import Release, ReleaseState, SkillState, TaskState
from app.db.training_data import LoggedSkill, LoggedTask
from app.records import Trajectory, hosted_id
from app.run_settings import RunKind, RunSettings
from app.score_source import GOOD, ScoreSource
from app.skills.skill_checks import is_wrapper
from trainer.experience.chain_rewards import SkillMakers
from trainer.experience.drop_reasons import DropReason
from trainer.experience.filters import BaseModel, ReleaseWeights, find_flaw, has_other_prompt, staleness_by_release
from trainer.experience.held_out_tasks import read_held_out
from trainer.experience.scenario_inference import Conduct, infer_scenarios
from trainer.experience.scored_task import ScoredTask


class Window(msgspec.Struct, frozen=True):
    """The tasks that ended in a window of time."""

    ended: int  # in all
    tasks: list[ScoredTask]  # oldest first
    scenarios: list[str]  # of each
    makers: SkillMakers
    dropped: list[DropReason]  # why the others are not among `tasks`


async def read_window(session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel) -> Window:
    """Read the window that the settings name, on a session of `reading`: it computes for seconds in between.

    Raises NotFoundError if the project has no active release.
    """
    rows = await training_data.window(
        session, project_id, since=settings.since, until=settings.until, limit=settings.limit
    )
    trusted = await judgements.trusted(session, project_id, {row.judged_by for row in rows})
    reasons = {row.id: why_dropped(row, trusted) for row in rows}
    learned = await _learned_until(session, project_id, settings)
    usable = [row for row in rows if reasons[row.id] is None]
    reasons |= dict.fromkeys(training_data.beyond_replay(usable, learned, settings.replay), DropReason.LEARNED)
    scored = {row.id: row for row in rows if reasons[row.id] is None}
    tasks = await _scored_tasks(session, project_id, scored, settings, base)
    skills = await training_data.skills(
        session,
        project_id,
        made_by=[task.id for task in tasks],
        ids={offer.skill_id for task in tasks for offer in task.trajectory.offered},
    )
    texts = [task.trajectory.task for task in tasks]
    without_trajectory = [DropReason.NOT_KEPT] * (len(scored) - len(tasks))
    return Window(
        ended=len(rows),
        tasks=tasks,
        scenarios=await asyncio.to_thread(infer_scenarios, texts, _slots(skills), _conduct(tasks)),
        makers={skill.id: skill.task_id for skill in skills if _may_earn(skill)},
        dropped=[reason for reason in reasons.values() if reason is not None] + without_trajectory,
    )


async def learns_from(session: AsyncSession, project_id: UUID, settings: RunSettings) -> datetime | None:
    """What ended before this the run would drop as learned, if all of its window had scores. None: nothing."""
    learned = await _learned_until(session, project_id, settings)
    window = {"since": settings.since, "until": settings.until}
    rows = await training_data.window(session, project_id, **window, limit=settings.limit)
    usable = [row for row in rows if row.executed]
    dropped = set(training_data.beyond_replay(usable, learned, settings.replay))
    return min((row.finished_at for row in usable if row.id not in dropped), default=learned)


async def _learned_until(session: AsyncSession, project_id: UUID, settings: RunSettings) -> datetime | None:
    """None for runs that do not leave out what was learned."""
    if settings.kind is not RunKind.LOGGED or settings.since is not None:
        return None
    return await training_data.learned_until(session, project_id)


def why_dropped(row: LoggedTask, trusted: Container[str | None]) -> DropReason | None:
    """Why a task is not learned from; None if it is. `trusted` are judges."""
    if row.state is TaskState.CANCELLED:
        return DropReason.CANCELLED
    if not row.executed:
        return DropReason.FAILED
    if row.score_source is ScoreSource.JUDGE and row.judged_by not in trusted:
        return DropReason.UNPROVEN_JUDGE
    return DropReason.UNSCORED if row.score is None else None


async def _scored_tasks(
    session: AsyncSession, project_id: UUID, rows: dict[UUID, LoggedTask], settings: RunSettings, base: BaseModel
) -> list[ScoredTask]:
    """The scored tasks, in the order in which they began. Those of hosted models are for supervised runs, which
    have them told anew in the prompt that the model servers' model is served with.
    """
    active = await releases.active(session, project_id)
    every = await releases.of_project(session, project_id)
    numbers = {release.id: release.number for release in every}
    prompts = {release.id: release.prompt for release in every}
    served = next((each.prompt for each in (active, *every) if _serves_here(each)), None)
    held_out = await read_held_out(session, project_id, settings.environment)
    staleness = staleness_by_release([_weights(each) for each in every], active.number, base.start)
    tasks = []
    async for trajectory in training_data.trajectories(session, list(rows)):
        row = rows[trajectory.task.id]
        assert row.release_id is not None  # a finished task has a release
        flaw = DropReason.HELD_OUT if trajectory.task in held_out else find_flaw(trajectory, row.base, base)
        retold = flaw is DropReason.HOSTED and settings.kind is RunKind.SFT
        flaw = None if retold else flaw
        if flaw is None and trajectory.task.conversation and trajectory.task.scenario is None:
            flaw = DropReason.CONVERSATION
        if flaw is None and not retold and has_other_prompt(trajectory, prompts[row.release_id], served):
            flaw = DropReason.OTHER_PROMPT
        tasks.append(_scored_task(row, trajectory, numbers[row.release_id], staleness[row.release_id], flaw))
    return sorted(tasks, key=lambda task: (task.began, task.id))


def _serves_here(release: Release) -> bool:
    """It is served, or was, by the model servers."""
    return hosted_id(release.model) is None and release.activated_at is not None


def _weights(release: Release) -> ReleaseWeights:
    served = release.state in (ReleaseState.ACTIVE, ReleaseState.RETIRED)
    return ReleaseWeights(release.id, release.number, release.model, served)


def _scored_task(
    row: LoggedTask, trajectory: Trajectory, release: int, staleness: int, flaw: DropReason | None
) -> ScoredTask:
    assert row.started_at is not None  # a finished task has a start
    assert row.score is not None
    return ScoredTask(
        trajectory=trajectory,
        score=row.score,
        began=row.started_at,
        release=release,
        staleness=staleness,
        unusable=flaw,
    )


def _may_earn(skill: LoggedSkill) -> bool:
    """A wrapper of one API call earns no bonus, nor does a deleted skill."""
    return skill.state is not SkillState.DELETED and not is_wrapper(skill.source)


def _conduct(tasks: Sequence[ScoredTask]) -> dict[UUID, Conduct]:
    return {task.id: Conduct.of(task.trajectory, solved=task.score >= GOOD) for task in tasks}


def _slots(skills: list[LoggedSkill]) -> dict[UUID, set[str]]:
    """The words of each task's instruction that its skills took as arguments."""
    slots: dict[UUID, set[str]] = defaultdict(set)
    for skill in skills:
        if skill.task_id is not None:
            slots[skill.task_id].update(skill.slots)
    return slots
