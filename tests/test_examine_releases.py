"""Runs of kind `exam`: releases are compared on the same scenarios of today, and nothing else changes."""

from pathlib import Path

import pytest

from app.db import evaluations, exams, projects
from app.db.database import Sessions
from app.errors import InvalidError
from app.run_settings import check_runnable, read_settings
from app.sandbox.forked_sandbox import ForkedSandbox
from app.settings import Settings
from tests.gated_run import NEW, SCENARIOS, SERVING, GatedRun, PartlyKnown, lazy
from tests.training_project import ProgressRecorder, TrainingProject
from trainer.evaluation.paired import evaluate_each
from trainer.runs.train import train


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    """Half of its hundred kinds of tasks are its exam."""
    settings = Settings(
        model=str(tiny),
        data_dir=tmp_path,
        database_url=database_url,
        engine_device="cpu",
        max_turns=1,
        max_turn_tokens=8,
        retrieval="query_ngram",
        prompt_profile="compact",
    )
    opened = await TrainingProject.open(committed, settings)
    async with committed.begin() as session:
        await projects.change_settings(session, opened.project_id, {"holdout_percent": 50})
    await opened.serve(1.0, 0.0, scenarios=100)
    return opened


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
        stored = await evaluations.of_exam(session, shop.project_id, "own-work")
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
    assert failure == "InvalidError: set environment: it has no scored tasks that it holds out (holdout_percent)"


async def test_models_are_compared_on_what_is_known_of_each(
    sessions: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    run = await GatedRun(sessions, bare_sandbox, tmp_path).open()
    run.environment = PartlyKnown(NEW, 3)
    evaluator = run.evaluator(run.policies(base=lazy, new=run.expert, serving=run.expert))
    results = await evaluate_each(evaluator, ["base", NEW, SERVING], scenarios=SCENARIOS, seed=0)
    assert results.settings["coverage"] == 3 / SCENARIOS
    solved = {name: sum(each.success for each in found) for name, found in results.models.items()}
    assert solved == {"base": 0, NEW: 9, SERVING: 9}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kind": "logged", "releases": "3"}, "set kind=exam, or leave them out"),
        ({"kind": "exam", "gate_scenarios": 0}, "set at least 30"),
        ({"kind": "exam", "gate_scenarios": 29}, "gate_scenarios=29 is too few"),
        ({"kind": "exam", "releases": "three"}, "releases"),
        ({"kind": "exam", "releases": "3,,4"}, "releases"),
        ({"kind": "exam", "releases": "3\n"}, "releases"),
    ],
)
def test_a_run_that_could_examine_nothing_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        check_runnable(read_settings(settings))
