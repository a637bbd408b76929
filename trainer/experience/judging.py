"""Has a judge score the tasks of a run's window that nobody else has scored, and those that show its agreement."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import structlog

from app.db import judgements, projects, scores, training_data
from app.db.database import Sessions
from app.errors import AppError, EngineRefusalError, InvalidError, NotFoundError
from app.judge import GroupJudge, NamedJudge, load_judge
from app.records import Trajectory
from app.run_settings import RunSettings
from app.score_source import ScoreSource
from app.settings import Settings
from trainer.experience.hosted_judge import HostedJudge
from trainer.experience.scenario_inference import infer_scenarios
from trainer.experience.window import learns_from

log = structlog.get_logger(__name__)

_MOST = 1_000  # tasks of one run, the latest
_AT_ONCE = 4  # groups
_SECONDS = 300.0  # for one group


async def judge_window(sessions: Sessions, project_id: UUID, settings: RunSettings, deployment: Settings) -> None:
    """Ask the judge that SAGE_JUDGE names, if it compares groups, and the project has no verifier.

    A group without an answer stays as it is, and the log names the reason. Raises SettingError.
    """
    named = await _judge_of(sessions, project_id, deployment)
    if named is None or named.group is None:
        return
    async with sessions() as session:
        own = projects.settings_of(await projects.by_id(session, project_id))
        if own.verifier is not None:
            return
        name = named.name(own.rubric)
        window = {"since": settings.since, "until": settings.until}
        window["unscored_since"] = await learns_from(session, project_id, settings)
        ids = await judgements.wanted(session, project_id, name, **window, limit=min(settings.limit, _MOST))
        tasks = [each async for each in training_data.trajectories(session, ids)]
    groups = await asyncio.to_thread(_groups, tasks, named.group.group_size)
    for start in range(0, len(groups), _AT_ONCE):
        some = groups[start : start + _AT_ONCE]
        found = await asyncio.gather(*(_ask(named.group, own.rubric, group) for group in some))
        for group, given in zip(some, found, strict=True):
            if not isinstance(given, AppError):
                await _store(sessions, group, given, name)
        if any(isinstance(given, EngineRefusalError) for given in found):
            return


async def _judge_of(sessions: Sessions, project_id: UUID, deployment: Settings) -> NamedJudge | None:
    """None also for a project without the hosted model that is to judge."""
    named = load_judge(deployment.judge)
    if named is None or not isinstance(named.group, HostedJudge):
        return named
    try:
        return await named.group.of_project(sessions, project_id, deployment)
    except NotFoundError as error:
        log.warning("tasks could not be judged", cause=str(error))
        return None


def _groups(tasks: Sequence[Trajectory], size: int) -> list[list[Trajectory]]:
    """Of one kind and one release each, as a run compares them."""
    kinds: dict[tuple[str, UUID | None], list[Trajectory]] = defaultdict(list)
    for task, kind in zip(tasks, infer_scenarios([each.task for each in tasks]), strict=True):
        kinds[kind, task.policy.release].append(task)
    return [some[start : start + size] for some in kinds.values() for start in range(0, len(some), size)]


async def _ask(judge: GroupJudge, rubric: str, group: Sequence[Trajectory]) -> Sequence[float | None] | AppError:
    """Its scores, or why there are none."""
    try:
        async with asyncio.timeout(_SECONDS):
            given = await judge.score_group(rubric, group)
        if len(given) != len(group) or not all(each is None or 0 <= each <= 1 for each in given):
            raise InvalidError("the judge answered nonsense: not one score in [0, 1] for each task")
        return given
    except AppError as error:
        log.warning("tasks could not be judged", tasks=len(group), cause=str(error))
        return error
    except Exception:  # code of other packages
        log.exception("tasks could not be judged", tasks=len(group))
        return InvalidError("the judge failed")


async def _store(
    sessions: Sessions, group: Sequence[Trajectory], given: Sequence[float | None], judged_by: str
) -> None:
    """In the order of the ids, as all do that lock several tasks."""
    pairs = sorted((each.task.id, score) for each, score in zip(group, given, strict=True) if score is not None)
    async with sessions.begin() as session:
        for task_id, score in pairs:
            await scores.give(session, task_id, score, ScoreSource.JUDGE, judged_by=judged_by)
