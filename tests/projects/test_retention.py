"""Projects that keep events, trajectories or tasks for some days only."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import func, select, update

from app.base.run_settings import RunKind, RunSettings
from app.base.values import Json, ScoreSource, Stop
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, TaskState
from app.projects import store as projects
from app.releases import store as releases
from app.runs import store as runs
from app.tasks import retention
from app.tasks import store as tasks
from app.tasks.retention import RetentionLoop
from tests.support.ledger_project import until
from tests.support.lock_waits import waits_for_a_lock
from tests.support.rows import project_row, trajectory_of, turn_of
from trainer.worker.run_files import clear_ended


async def _project(sessions: Sessions, settings: Mapping[str, Json]) -> UUID:
    async with sessions.begin() as session:
        project = await project_row(session)
        await projects.change_settings(session, project.id, settings)
        return project.id


async def _ended(sessions: Sessions, project_id: UUID, *days: float) -> list[UUID]:
    """Tasks that ended so many days ago, each with a trajectory, a turn and a `done`."""
    made = []
    async with sessions.begin() as session:
        for each in days:
            task = await tasks.submit(session, project_id, tasks.NewTask(instruction="tidy up"))
            await results.save(session, project_id, trajectory_of(task, turn_of()))
            for kind in ("turn", "done"):
                await results.append(session, task.id, kind, {})
            finished = func.now() - timedelta(days=each)
            ended = {"state": TaskState.DONE, "stop": Stop.COMPLETED, "score": 1.0, "finished_at": finished}
            await session.execute(update(tables.Task).where(tables.Task.id == task.id).values(ended))
            made.append(task.id)
    return made


async def _left(sessions: Sessions, project_id: UUID) -> tuple[int, int, int]:
    """Tasks, trajectories and events."""
    own = select(tables.Task.id).where(tables.Task.project_id == project_id)
    columns = (tables.Task.id, tables.Trajectory.task_id, tables.TaskEvent.task_id)
    counted = [select(func.count()).where(column.in_(own)) for column in columns]
    async with sessions() as session:
        first, second, third = [await session.scalar(each) or 0 for each in counted]
    return first, second, third


async def _needed_by(sessions: Sessions) -> list[str]:
    async with sessions() as session:
        return [window.needed_by for window in await retention.windows(session)]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, (3, 3, 6)),
        ({"keep_events": 5}, (3, 3, 4)),
        ({"keep_trajectories": 5}, (3, 1, 6)),
        ({"keep_tasks": 5}, (1, 1, 2)),
        ({"keep_tasks": 30, "keep_events": 5}, (3, 3, 4)),
        ({"keep_tasks": 5, "keep_events": 5, "keep_trajectories": 5}, (1, 1, 2)),
    ],
    ids=str,
)
async def test_what_is_older_than_the_project_keeps_it_is_deleted(
    committed: Sessions, settings: dict[str, Json], left: tuple[int, int, int]
) -> None:
    project, other = await _project(committed, settings), await _project(committed, {})
    for each in (project, other):
        await _ended(committed, each, 7, 6, 1)
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == left
    assert await _left(committed, other) == (3, 3, 6)


async def test_tasks_that_have_not_ended_stay_however_old_they_are(committed: Sessions) -> None:
    project = await _project(committed, {"keep_tasks": 1})
    [task] = await _ended(committed, project, 400)
    unfinished = {"state": TaskState.WAITING, "finished_at": None, "created_at": func.now() - timedelta(days=400)}
    async with committed.begin() as session:
        await session.execute(update(tables.Task).where(tables.Task.id == task).values(unfinished))
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (1, 1, 2)


async def test_batches_delete_everything_once_and_are_counted(committed: Sessions) -> None:
    project = await _project(committed, {"keep_events": 5})
    await _ended(committed, project, *(10 + number / 10 for number in range(5)), 1)
    before = REGISTRY.get_sample_value("sage_retention_deleted_total", {"kind": "events"}) or 0
    async with committed.begin() as session:
        [window] = await retention.windows(session)
        assert await retention.delete_some(session, window, 2) == retention.Deletion(2, more=True)
    await RetentionLoop(committed, batch=2).delete_due()
    assert await _left(committed, project) == (6, 6, 7)
    assert REGISTRY.get_sample_value("sage_retention_deleted_total", {"kind": "events"}) == before + 3
    async with committed.begin() as session:
        assert await retention.delete_some(session, window, 2) == retention.Deletion(0, more=False)


async def test_one_process_deletes_at_a_time(committed: Sessions) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    await _ended(committed, project, 9, 8)
    async with committed.begin() as first, committed.begin() as second:
        [window] = await retention.windows(first)
        assert await retention.delete_some(first, window, 1) == retention.Deletion(1, more=True)
        assert await retention.delete_some(second, window, 1) is None
    assert await _left(committed, project) == (1, 1, 2)


_KILLED = """
import asyncio, sys
from app.tasks import retention
from app.db.database import open_database
from tests.support.encryption_keys import TEST_KEYS

async def main():
    async with open_database(sys.argv[1], keys=TEST_KEYS) as database, database.sessions.begin() as session:
        [window] = await retention.windows(session)
        print((await retention.delete_some(session, window, 2)).rows, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_batch_that_is_killed_deletes_nothing_and_is_repeated(
    committed: Sessions, database_url: str
) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    await _ended(committed, project, 9, 8, 7, 1)
    words = (sys.executable, "-c", _KILLED, database_url)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"2\n", "it is in the middle of a batch"
    process.kill()
    await process.wait()
    assert await _left(committed, project) == (4, 4, 8)
    async with committed() as session:  # the server notices the death, and lets others delete
        await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended("retention", 0))))
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (1, 1, 2)


async def test_a_run_that_has_not_read_its_tasks_keeps_those_it_may_read(committed: Sessions) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    await _ended(committed, project, 9, 8, 7)
    async with committed.begin() as session:
        since = await session.scalar(select(func.now() - timedelta(days=8.5)))
        every = await runs.create(session, project, RunSettings(kind=RunKind.LOGGED))
    assert await _needed_by(committed) == ["a run"]
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (3, 3, 6)
    assert REGISTRY.get_sample_value("sage_retention_held", {"kind": "tasks"}) == 1
    async with committed.begin() as session:
        await runs.request_cancel(session, every.id)
        late = await runs.create(session, project, RunSettings(kind=RunKind.SFT, since=since))
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (2, 2, 4), "the run reads those since its `since`"
    async with committed.begin() as session:
        has_read = update(tables.TrainingRun).where(tables.TrainingRun.id == late.id).values(started_from="base")
        await session.execute(has_read)
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (0, 0, 0)


@pytest.mark.parametrize("setting", ["keep_trajectories", "keep_tasks"])
async def test_copies_that_runs_keep_of_what_is_deleted_go_when_they_have_ended(
    committed: Sessions, tmp_path: Path, setting: str
) -> None:
    project, names = await _project(committed, {setting: 5}), dict[UUID, str]()
    old, young = await _ended(committed, project, 9, 1)
    async with committed.begin() as session:
        for name, task in (("cancelled", old), ("queued", old), ("of a later task", young)):
            run = await runs.create(session, project, RunSettings(kind=RunKind.LOGGED))
            assert await releases.record(session, run.id, "base", [task])
            if name != "queued":
                await runs.request_cancel(session, run.id)
            (tmp_path / str(run.id)).mkdir()
            (tmp_path / str(run.id) / "logged.msgpack").write_text("what people said")
            names[run.id] = name
    await RetentionLoop(committed).delete_due()
    assert [names[each] for each in await clear_ended(committed, tmp_path)] == ["cancelled"]
    async with committed.begin() as session:
        for run_id in names:
            await runs.request_cancel(session, run_id)
    assert [names[each] for each in await clear_ended(committed, tmp_path)] == ["queued"]


async def test_a_run_that_records_a_task_before_it_is_deleted_is_known_as_its_reader(committed: Sessions) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    [task] = await _ended(committed, project, 9)
    async with committed.begin() as session:
        run = await runs.create(session, project, RunSettings(kind=RunKind.SFT, data="chats.jsonl"))
    async with committed.begin() as session:
        assert await releases.record(session, run.id, "base", [task])
        deleting = asyncio.create_task(RetentionLoop(committed).delete_due())
        await until(lambda: waits_for_a_lock(committed))
    await deleting
    assert await _left(committed, project) == (0, 0, 0)
    async with committed() as session:
        assert (await runs.get(session, run.id)).erased


@pytest.mark.parametrize(
    "settings", [RunSettings(kind=RunKind.ROLLOUT), RunSettings(kind=RunKind.SFT, data="chats.jsonl")], ids=str
)
async def test_a_run_that_reads_no_tasks_keeps_none(committed: Sessions, settings: RunSettings) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    await _ended(committed, project, 9)
    async with committed.begin() as session:
        await runs.create(session, project, settings)
    assert await _needed_by(committed) == [""]


async def test_shadows_and_canaries_keep_what_they_compare(committed: Sessions) -> None:
    project = await _project(committed, {"keep_trajectories": 5})
    _, second, _ = await _ended(committed, project, 9, 8, 7)
    async with committed.begin() as session:
        release = await releases.propose(session, project, "a" * 32)
        shadow = tables.Shadow(release_id=release.id, task_id=second)
        session.add(shadow)
    assert await _needed_by(committed) == ["a shadow"]
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (3, 2, 6)
    async with committed.begin() as session:
        await session.delete(await session.merge(shadow))
        changed = {"state": ReleaseState.CANARY, "canary_at": func.now() - timedelta(days=7.5)}
        await session.execute(update(tables.Release).where(tables.Release.id == release.id).values(changed))
    assert await _needed_by(committed) == ["a canary"]
    await RetentionLoop(committed).delete_due()
    assert await _left(committed, project) == (3, 1, 6)


async def test_a_watch_keeps_what_it_compares_with(committed: Sessions) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    await _ended(committed, project, 40, 8)
    async with committed.begin() as session:
        active = await releases.active(session, project)
        active.watched_against, active.watched_since = active.id, func.now() - timedelta(days=7)
    assert await _needed_by(committed) == ["a watch"]
    await RetentionLoop(committed).delete_due()
    assert (await _left(committed, project))[0] == 1, "the first one is not compared any more"


async def test_a_schedule_does_not_wait_for_tasks_that_were_deleted(committed: Sessions) -> None:
    project = await _project(committed, {"keep_tasks": 5})
    await _ended(committed, project, 9, 8, 1)
    async with committed.begin() as session:
        oldest = select(tables.Task.id).order_by(tables.Task.finished_at).limit(1).scalar_subquery()
        judged = update(tables.Task).where(tables.Task.id == oldest).values(score_source=ScoreSource.JUDGE)
        await session.execute(judged)
        session.add(tables.Schedule(project_id=project, every_scored_tasks=1, settings={}, scored_seen=2))
    await RetentionLoop(committed).delete_due()
    async with committed() as session:
        assert await session.scalar(select(tables.Schedule.scored_seen)) == 1
