"""Training runs with real Celery workers, processes and database, whichever of them is killed."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from app.base.run_settings import RunSettings
from app.db import tables
from app.db.database import Sessions
from app.db.tables import RunState
from app.releases import store as releases
from app.runs import schedule
from app.runs import store as runs
from tests.support.emptied_database import emptied_database
from tests.support.processes import alive, command_of, descendants, gone
from tests.support.rows import project_row
from tests.support.worker_host import ENDED, WorkerHost


@pytest.fixture(scope="module")
async def opened(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerHost]:
    async with emptied_database(database_url) as database:
        host = WorkerHost(database.sessions, database_url, tmp_path_factory.mktemp("host"))
        yield host
        await host.close()


@pytest.fixture
async def host(opened: WorkerHost, committed: Sessions) -> WorkerHost:  # noqa: ARG001  it empties the tables afterwards
    """Workers are shared between tests, because each takes a second to start."""
    return opened


async def test_a_worker_reports_its_environments_when_it_starts(host: WorkerHost) -> None:
    await host.worker()
    while True:
        async with host.sessions() as session:
            found = await runs.installed(session)
        if found:
            break
        await asyncio.sleep(0.1)
    assert [each.name for each in found] == ["crud", "exam", "gym", "office", "openenv", "practice", "strangers"]


async def test_a_run_is_executed_in_a_process_of_its_own_and_stores_its_steps(host: WorkerHost) -> None:
    worker = await host.worker()
    run_id = await host.queue(steps=30)
    began = await host.started(run_id)
    assert began.steps == 30
    [process] = [pid for pid in descendants(worker.pid) if str(run_id) in command_of(pid)]
    assert os.getpgid(process) == process
    run = await host.ended(run_id)
    assert (run.state, run.failure, run.attempt, run.step) == (RunState.DONE, None, 1, 30)
    assert run.result is not None
    assert run.result["adapter"] == "f00d"
    async with host.sessions() as session:
        assert [(each.index, each.metrics) for each in await runs.steps(session, run_id, after=28)] == [
            (29, {"reward": 2.9}),
            (30, {"reward": 3.0}),
        ]


async def test_a_failed_run_stores_the_reason_and_the_active_release_stays(host: WorkerHost) -> None:
    await host.worker()
    ids = {name: await host.queue(name) for name in ("invalid", "defect", "full disk")}
    failures = {name: (await host.ended(run_id)).failure for name, run_id in ids.items()}
    directory = host.directory / "runs"
    assert failures == {
        "invalid": "InvalidError: no scored tasks in the window: attach a check or send feedback",
        "defect": "TypeError: that was not meant (a defect: see the end of "
        f"{directory / str(ids['defect']) / 'log'})",
        "full disk": f"StorageError: no space is left for {directory / str(ids['full disk'])}: "
        "free some, then retry",
    }
    assert "in _misbehave" in (directory / str(ids["defect"]) / "log").read_text()
    async with host.sessions() as session:
        run = await runs.get(session, ids["invalid"])
        assert (await releases.active(session, run.project_id)).number == 1


@pytest.mark.parametrize("data", ["defect", "killed"])
async def test_the_end_of_the_log_is_in_the_database(host: WorkerHost, data: str) -> None:
    """Of what the process wrote last too, however it ended."""
    await host.worker()
    run_id = await host.queue(data)
    await host.ended(run_id)
    log = (host.directory / "runs" / str(run_id) / "log").read_text()
    assert {"defect": "that was not meant", "killed": "written just before"}[data] in log
    async with host.sessions() as session:
        while await runs.read(session, run_id) != log:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_failed_run_that_is_retried_runs_again(host: WorkerHost) -> None:
    await host.worker()
    run_id = await host.queue("invalid")
    await host.ended(run_id)
    async with host.sessions.begin() as session:
        run = await runs.retry(session, run_id)
        run.settings = {**run.settings, "data": ""}
    assert (await host.ended(run_id)).failure is None


async def test_a_run_whose_process_is_killed_is_resumed_and_ends_once(host: WorkerHost) -> None:
    await host.worker()
    run_id = await host.queue("killed once")
    run = await host.ended(run_id)
    assert (run.state, run.attempt, run.step) == (RunState.DONE, 2, 4)
    assert [(what, attempt) for what, attempt, _ in host.notes(run_id)] == [
        ("began", "1"),
        ("began", "2"),
        ("ended", "2"),
    ]


async def test_a_run_that_kills_every_process_fails(host: WorkerHost) -> None:
    await host.worker()
    run = await host.ended(await host.queue("killed"))
    assert (run.state, run.attempt) == (RunState.FAILED, 3)
    assert run.failure is not None
    assert run.failure.startswith("RunLostError: the process of this run was lost 3 times")


async def test_a_killed_worker_ends_its_training_process_and_another_resumes_the_run(host: WorkerHost) -> None:
    worker = await host.worker()
    run_id = await host.queue(steps=40)
    await host.started(run_id)
    process = next(pid for pid in descendants(worker.pid) if str(run_id) in command_of(pid))
    worker.kill()
    await worker.wait()
    await gone([process])
    await host.worker()
    run = await host.ended(run_id)
    assert (run.state, run.attempt) == (RunState.DONE, 2)
    assert [what for what, _, _ in host.notes(run_id)].count("ended") == 1


async def test_a_worker_that_stops_requeues_its_run_without_counting_the_attempt(host: WorkerHost) -> None:
    worker = await host.worker()
    run_id = await host.queue("deaf", steps=3)
    await host.wait_for(run_id, lambda run: run.step == 2)
    worker.terminate()
    assert await worker.wait() == 0
    run = await host.wait_for(run_id, lambda run: run.state == RunState.QUEUED)
    assert (run.attempt, run.owner) == (0, None)


async def test_a_process_that_was_suspended_beyond_its_lease_writes_nothing(host: WorkerHost) -> None:
    await host.workers(2)
    run_id = await host.queue(steps=30)
    await host.started(run_id)
    [[_, _, sleeper]] = host.notes(run_id)
    os.kill(int(sleeper), signal.SIGSTOP)
    await host.wait_for(run_id, lambda run: run.attempt == 2 and run.step > 1)
    os.kill(int(sleeper), signal.SIGCONT)
    await gone([int(sleeper)])
    assert ((await host.ended(run_id)).state, len(host.notes(run_id))) == (RunState.DONE, 3)


async def test_a_stopped_process_is_killed_and_its_only_worker_resumes_the_run(host: WorkerHost) -> None:
    await host.only_worker(SAGE_HANG_SECONDS="3")
    run_id = await host.queue(steps=40)
    await host.started(run_id)
    [[_, _, sleeper]] = host.notes(run_id)
    os.kill(int(sleeper), signal.SIGSTOP)
    await gone([int(sleeper)])
    run = await host.ended(run_id)
    assert (run.state, run.attempt) == (RunState.DONE, 2)
    await host.workers(0)


async def test_a_process_that_computes_for_longer_than_the_limit_is_not_killed(host: WorkerHost) -> None:
    await host.only_worker(SAGE_HANG_SECONDS="2")
    run_id = await host.queue("deaf", steps=3)
    await host.wait_for(run_id, lambda run: run.step == 2)
    [[_, _, busy]] = host.notes(run_id)
    await asyncio.sleep(3)
    assert alive(int(busy)), "its heartbeat is a thread"
    await host.workers(0)


async def test_runs_whose_messages_are_lost_start_later(host: WorkerHost) -> None:
    await host.worker()
    first = await host.queue(steps=15)
    await host.started(first)
    second = await host.queue(steps=1)
    for message in (host.directory / "broker" / "messages").iterdir():
        message.unlink()
    assert [(await host.ended(run_id)).attempt for run_id in (first, second)] == [1, 1]


async def test_a_worker_that_starts_finds_runs_without_messages(host: WorkerHost) -> None:
    await host.workers(0)
    run_id = await host.queue(notify=False, steps=1)
    shutil.rmtree(host.directory / "broker")
    await host.worker()
    assert (await host.ended(run_id)).state is RunState.DONE


async def test_a_cancelled_run_ends_within_seconds_even_if_it_blocks(host: WorkerHost) -> None:
    await host.workers(2)
    kind, deaf = await host.queue(steps=600), await host.queue("deaf")
    await host.started(kind)
    await host.wait_for(deaf, lambda run: run.step == 2)
    for run_id in (kind, deaf):
        async with host.sessions.begin() as session:
            await runs.request_cancel(session, run_id)
    await host.wait_for(kind, lambda run: run.state == RunState.CANCELLED)
    await host.wait_for(deaf, lambda run: run.state == RunState.CANCELLED)
    [[_, _, process]] = host.notes(deaf)
    await gone([int(process)])


async def test_two_workers_execute_every_run_once_and_one_per_project_at_a_time(host: WorkerHost) -> None:
    async with host.sessions.begin() as session:
        projects = [(await project_row(session)).id for _ in range(2)]
    ids = [await host.queue(steps=2, project=project) for project in projects for _ in range(2)]
    await host.workers(2)
    ended = [await host.ended(run_id) for run_id in ids]
    assert [(run.state, run.attempt) for run in ended] == [(RunState.DONE, 1)] * 4
    assert all(len(host.notes(run_id)) == 2 for run_id in ids)
    for one, other in (ended[:2], ended[2:]):
        first, second = sorted(_span(run) for run in (one, other))
        assert second[0] >= first[1]


def _span(run: tables.TrainingRun) -> tuple[datetime, datetime]:
    assert run.started_at is not None
    assert run.finished_at is not None
    return run.started_at, run.finished_at


async def test_the_worker_fires_schedules(host: WorkerHost) -> None:
    async with host.sessions.begin() as session:
        project = await project_row(session)
        await schedule.put(
            session, project.id, schedule.ScheduleRequest(every_hours=1 / 3600, settings=RunSettings(steps=1))
        )
    await host.worker()
    while True:
        async with host.sessions() as session:
            found = (await runs.page(session, project.id, state=RunState.DONE)).items
        if len(found) > 1:
            break
        await asyncio.sleep(0.1)
    async with host.sessions.begin() as session:
        await schedule.remove(session, project.id)


@pytest.mark.slow
async def test_no_run_is_lost_or_ends_twice_while_workers_are_killed_repeatedly(host: WorkerHost) -> None:
    ids = [await host.queue(steps=10) for _ in range(6)]
    for run_id in ids[:2]:  # twice: what is lost three times is given up
        workers = await host.workers(2)
        await host.wait_for(run_id, lambda run: run.step > 2 or run.state in ENDED)
        for worker in workers:
            worker.kill()
            await worker.wait()
    await host.workers(2)
    ended = [await host.wait_for(run_id, lambda run: run.state in ENDED) for run_id in ids]
    assert [run.state for run in ended] == [RunState.DONE] * 6
    assert sum(run.attempt for run in ended) > 6, "no kill hit a running process"
    async with host.sessions() as session:
        assert [len(await runs.steps(session, run_id)) for run_id in ids] == [10] * 6
