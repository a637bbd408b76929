"""Runs of kind `exam`: releases are compared on the same scenarios of today, and nothing else changes."""

from pathlib import Path

import pytest
from sqlalchemy import select, update

from app.base.errors import InvalidError
from app.base.run_settings import check_runnable, read_settings
from app.base.values import BASE
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ExamSource
from app.projects import store as projects
from app.projects.kinds import is_held_out
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.gated_run import PartlyKnown
from tests.support.training_project import ONE_TURN, ProgressRecorder, TrainingProject, on_this_machine
from trainer.run import train
from trainer.run_job import RunCancelledError
from trainer.runs.candidate import examine_releases
from trainer.runs.environment import RunEnvironment

pytestmark = pytest.mark.slow  # whole exams of several releases


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    """Half of its hundred kinds of tasks are its exam."""
    settings = on_this_machine(tiny, tmp_path, database_url, **ONE_TURN)
    opened = await TrainingProject.open(committed, settings)
    async with committed.begin() as session:
        await projects.change_settings(session, opened.project_id, {"holdout_percent": 50})
    await opened.serve(1.0, 0.0, scenarios=100)
    return opened


def held_out(shop: TrainingProject) -> str:
    """A kind that the exam does not have yet."""
    return next(each for each in map(str, range(99)) if is_held_out(shop.project_id, each, 50))


async def test_releases_are_examined_on_the_exam_of_today_and_nothing_else_changes(shop: TrainingProject) -> None:
    await train(await shop.job(kind="logged", steps=1, pairs=2), ProgressRecorder())
    before, [adapter] = await shop.active(), await shop.adapters()
    progress = ProgressRecorder()
    job = await shop.job(kind="exam", releases="2", gate_scenarios=30)
    result = await train(job, progress)
    assert (result.adapter, result.release_id, result.decision) == ("", None, "")
    assert result.reason.startswith("release 1 solves 0.0 % of 30 scenarios, release 2 solves 0.0 % (+0.0 [")
    active, candidate = result.evidence["releases"]
    assert (active["number"], active["difference"]) == (1, None)
    assert (candidate["number"], candidate["difference"]["scenarios"]) == (2, 30)
    async with shop.sessions() as session:
        exam = await exams.get(session, shop.project_id, "own-work")
        stored = await exams.of_exam(session, shop.project_id, "own-work")
    assert [(number, row.settings["exam"]["digest"]) for row, number in stored] == [
        (1, exam.digest),
        (2, exam.digest),
    ]
    assert result.evidence["evaluation"] == stored[0][0].settings
    assert (await shop.active()).id == before.id
    assert [each.hash for each in await shop.adapters()] == [adapter.hash]
    assert await shop.of_run(job) == []
    [*_, last] = progress.parts
    assert last == ("exam tasks", 60, 60)


async def test_without_a_name_the_active_release_is_examined_alone(shop: TrainingProject) -> None:
    result = await train(await shop.job(kind="exam", gate_scenarios=30), ProgressRecorder())
    assert result.reason == "release 1 solves 0.0 % of 30 scenarios"


async def test_a_release_that_cannot_be_examined_is_named_before_any_is(shop: TrainingProject) -> None:
    unknown = await shop.failure(await shop.job(kind="exam", releases="1, 7,9", gate_scenarios=30))
    assert unknown == "InvalidError: the project shop has no release 7, 9: GET /v1/releases lists them"
    await shop.activate("c0ffee", base="another-model")
    first = await shop.failure(await shop.job(kind="exam", releases="1", gate_scenarios=30))
    assert "release 2 has an adapter for the base model another-model, but " in first
    await shop.activate("a" * 64, base=shop.settings.model)
    gone = await shop.failure(await shop.job(kind="exam", gate_scenarios=30))
    assert gone.startswith("InvalidError: release 3 cannot be examined: ")


async def test_a_project_without_an_exam_is_told_how_to_get_one(shop: TrainingProject) -> None:
    async with shop.sessions.begin() as session:
        await projects.change_settings(session, shop.project_id, {"holdout_percent": 0})
    failure = await shop.failure(await shop.job(kind="exam", gate_scenarios=30))
    assert failure.startswith(
        "InvalidError: set environment, as the project's own work is no exam: it has no scored"
    )


async def test_where_too_little_is_known_of_all_releases_nothing_is_compared(shop: TrainingProject) -> None:
    job = await shop.job(kind="exam", environment="office", gate_scenarios=40)
    half = RunEnvironment(PartlyKnown(BASE, 20, count=40))
    with pytest.raises(
        InvalidError, match=r"results of 20 scenarios, 50%, are known of each of the releases 1: 30"
    ):
        await examine_releases(job, ProgressRecorder(), shop.sessions, half)
    job = await shop.job(kind="exam", environment="office", gate_scenarios=40)
    most = RunEnvironment(PartlyKnown(BASE, 32, count=40))
    result = await examine_releases(job, ProgressRecorder(), shop.sessions, most)
    assert result.reason == "release 1 solves 0.0 % of 32 scenarios"
    assert result.evidence["evaluation"]["coverage"] == 0.8


async def test_an_attempt_goes_on_where_the_last_one_was_lost_and_stores_its_results_once(
    shop: TrainingProject,
) -> None:
    await train(await shop.job(kind="logged", steps=1, pairs=2), ProgressRecorder())
    job = await shop.job(kind="exam", releases="2", gate_scenarios=30)
    with pytest.raises(RunCancelledError):
        await train(job, ProgressRecorder(ends_at=1))
    second, third = ProgressRecorder(), ProgressRecorder()
    await train(job, second)
    assert (list(second.metrics), second.total) == ([2], 2), "the first release was done"
    result = await train(job, third)
    assert list(third.metrics) == []
    async with shop.sessions() as session:
        of_run = select(tables.Evaluation.figures).where(tables.Evaluation.run_id == job.id)
        stored = (await session.scalars(of_run.order_by(tables.Evaluation.created_at))).all()
    assert stored == [each["figures"] for each in result.evidence["releases"]]


async def test_other_scenarios_than_those_of_the_last_attempt_are_all_examined(shop: TrainingProject) -> None:
    job = await shop.job(kind="exam", gate_scenarios=30)
    await train(job, ProgressRecorder())
    await shop.serve(1.0, scenarios=1, scenario=held_out(shop))
    progress = ProgressRecorder()
    await train(job, progress)
    assert list(progress.metrics) == [1], "the exam has grown"


async def test_a_worker_with_another_prompt_examines_nothing(shop: TrainingProject) -> None:
    async with shop.sessions.begin() as session:
        await session.execute(update(tables.Release).values(prompt="another"))
    failure = await shop.failure(await shop.job(kind="exam", gate_scenarios=30))
    assert failure.startswith("InvalidError: this worker renders another prompt than the one that is served")


async def test_an_exam_that_recorded_calls_cannot_try_says_what_is_needed(shop: TrainingProject) -> None:
    task = NewExamTask(instruction="sum it", check_code="score = 1.0")
    async with shop.sessions.begin() as session:
        await exams.put(session, shop.project_id, "short", ExamSource.SUBMITTED, [task])
    failure = await shop.failure(await shop.job(kind="exam", environment="exam?name=short", gate_scenarios=30))
    assert "exam?name=short has 0 scenarios that can be tried, 30 are needed" in failure


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kind": "logged", "releases": "3"}, "set kind=exam, or leave them out"),
        (
            {"kind": "exam", "gate_scenarios": 0},
            "gate_scenarios=0 is too few to compare releases by: set at least 30",
        ),
        ({"kind": "exam", "gate_scenarios": 29}, "gate_scenarios=29 is too few to compare"),
        ({"kind": "exam", "releases": "1,2,3,4,5,6,7,8"}, "releases"),
        ({"kind": "exam", "releases": "three"}, "releases"),
        ({"kind": "exam", "releases": "3,,4"}, "releases"),
        ({"kind": "exam", "releases": "3\n"}, "releases"),
    ],
)
def test_a_run_that_could_examine_nothing_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        check_runnable(read_settings(settings))
