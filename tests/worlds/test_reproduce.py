"""The experiment: its trials, its tables and curves, and how it resumes."""

import asyncio
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from app.engine.adapter_files import WEIGHTS
from tests.support.task_results import result
from trainer.environment import open_environment
from trainer.rollouts.episode import open_stack
from trainer.worlds.commands import reproduce
from trainer.worlds.report import draw_curves, provenance, record_commit, source_commit
from trainer.worlds.reproduce import run
from trainer.worlds.reproduce.findings import LABELS, as_json, as_markdown, differences, read_rows
from trainer.worlds.reproduce.plan import (
    ExperimentPlan,
    Trial,
    baseline_rows,
    conflicting_values,
    evaluated_rows,
    repeated_trials,
    search_trials,
)
from trainer.worlds.reproduce.run import Experiment, TrialError
from trainer.worlds.reproduce.start import experiment_settings, make_start
from trainer.worlds.reproduce.trial import RowResults, TrialResult, TrialRunner, results_file, trial_file
from trainer.worlds.seed_policy.pretrain import load_samples

PLAN = ExperimentPlan()
FIRST_STEP = "learner-00001.checkpoint"


def evaluate(work: Path, row: str, seed: int, solved: int) -> None:
    """Twenty scenarios of one task each, of which the first `solved` are solved."""
    results = [
        result(f"s{at}", success=at < solved, offered=1, used=int(at < solved), wrote=1, library=1)
        for at in range(20)
    ]
    path = results_file(work, row, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(RowResults(row=row, seed=seed, results=results)))


def train(work: Path, trial: Trial, score: float) -> None:
    point = {"step": 4, "validation": {"sgc": {"mean": score}}}
    path = trial_file(work, trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        msgspec.json.encode(TrialResult(trial=trial, best=4, score=score, adapter="a", curve=[point]))
    )


def test_every_condition_tries_as_many_learning_rates() -> None:
    tried = [trial.condition for trial in search_trials(PLAN)]
    assert {tried.count(name) for name in PLAN.conditions} == {len(PLAN.lrs)}
    assert {trial.seed for trial in search_trials(PLAN)} == {0}


def test_main_rows_get_five_seeds_and_ablations_three() -> None:
    lrs = dict.fromkeys(PLAN.conditions, 1e-3)
    count = [
        trial.condition for trial in [*(Trial(name, 0, 1e-3) for name in lrs), *repeated_trials(PLAN, lrs)]
    ].count
    assert [count(name) for name in ("sage", "sft_grpo", "sage_outcome", "sage_chain")] == [5] * 4
    assert [count(name) for name in ("sage_no_sft", "chain_3", "retrieval_query_ngram")] == [3] * 3


def test_conditions_differ_only_in_what_their_name_says() -> None:
    sage = PLAN.conditions["sage"].settings
    changes: dict[str, dict[str, object]] = {
        "sft_grpo": {"skills": False, "reward": "outcome"},
        "sage_outcome": {"reward": "outcome"},
        "sage_chain": {"reward": "chain"},
        "chain_3": {"chain": 3, "pairs": 4},  # 3 * 4 tasks a rollout of the group, as 2 * 6
    }
    for name, change in changes.items():
        assert PLAN.conditions[name].settings == msgspec.structs.replace(sage, **change)
    found_otherwise = PLAN.conditions["retrieval_query_ngram"]
    assert (found_otherwise.settings, found_otherwise.retrieval) == (sage, "query_ngram")


def test_the_learning_rate_is_the_best_one_on_the_validation_templates(tmp_path: Path) -> None:
    for trial in search_trials(PLAN):
        train(tmp_path, trial, 40.0 if trial.lr == PLAN.lrs[0] else 30.0)
    train(tmp_path, Trial("sage", 0, PLAN.lrs[1]), 50.0)
    chosen = Experiment(PLAN, tmp_path, print).chosen()
    assert chosen["sage"] == PLAN.lrs[1]
    assert chosen["sft_grpo"] == PLAN.lrs[0]


def test_a_condition_with_an_untried_learning_rate_has_none_chosen(tmp_path: Path) -> None:
    for trial in search_trials(PLAN):
        train(tmp_path, trial, 40.0)
    trial_file(tmp_path, Trial("sage", 0, PLAN.lrs[1])).unlink()
    chosen = Experiment(PLAN, tmp_path, print).chosen()
    assert set(chosen) == set(PLAN.conditions) - {"sage"}
    assert "sage" not in {trial.condition for trial in repeated_trials(PLAN, chosen)}


def test_a_table_can_be_written_before_everything_is_finished(tmp_path: Path) -> None:
    order = ["--work", str(tmp_path / "work"), "--out", str(tmp_path), "--table-only"]
    shown = CliRunner().invoke(reproduce, order, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    written = msgspec.json.decode((tmp_path / "reproduce.json").read_bytes())
    assert (written["rows"], written["commit"]) == ([], source_commit())
    for trial in search_trials(PLAN):
        if trial.condition == "sage":
            train(tmp_path / "work", trial, 40.0)
    evaluate(tmp_path / "work", "sage", 0, solved=15)
    CliRunner().invoke(reproduce, order, catch_exceptions=False)
    [row] = msgspec.json.decode((tmp_path / "reproduce.json").read_bytes())["rows"]
    assert (row["name"], row["lr"]) == ("sage", PLAN.lrs[0])
    assert (tmp_path / "reproduce.svg").exists()


@pytest.mark.parametrize("missing", ["sft_skills_off", "sage_skills_off"])
async def test_a_process_interrupted_between_two_rows_runs_again_and_its_failure_names_the_log(
    tmp_path: Path, missing: str
) -> None:
    """Without a plan in the directory a process that is run fails."""
    plan = ExperimentPlan(seeds=1, only=("sage",))
    for trial in search_trials(plan):
        train(tmp_path, trial, 40.0)
    for row in (*baseline_rows(plan), *evaluated_rows(plan, "sage")):
        evaluate(tmp_path, row, 0, solved=15)
    finished: list[str] = []
    await Experiment(plan, tmp_path, finished.append).execute(1)
    assert len(finished) == 4
    results_file(tmp_path, missing, 0).unlink()
    order = "baselines-0" if missing in baseline_rows(plan) else f"exam-sage-0-{plan.lrs[0]}"
    with pytest.raises(TrialError, match=f"ended with code 1: see {tmp_path}/logs/{order}.log, then run"):
        await Experiment(plan, tmp_path, print).execute(1)


def test_results_name_the_commits_they_were_made_with(tmp_path: Path) -> None:
    record_commit(tmp_path, "abc")
    record_commit(tmp_path, "abc")
    assert provenance(tmp_path, "abc") == "abc"
    assert provenance(tmp_path, "xyz") == "abc, written at xyz"
    record_commit(tmp_path, "def")
    assert provenance(tmp_path, "def") == "abc, resumed at def"


def test_the_first_commit_is_unknown_in_a_directory_from_before_they_were_recorded(tmp_path: Path) -> None:
    (tmp_path / "demonstrations.npz").touch()
    assert provenance(tmp_path, "abc") == "unknown, written at abc"
    record_commit(tmp_path, "abc")
    assert provenance(tmp_path, "abc") == "unknown, resumed at abc"


def test_another_plan_is_refused_in_a_directory_with_results(tmp_path: Path) -> None:
    assert conflicting_values(tmp_path, PLAN) is None
    assert conflicting_values(tmp_path, PLAN) is None
    assert conflicting_values(tmp_path, ExperimentPlan(steps=PLAN.steps + 1)) == f"steps={PLAN.steps}"


def test_a_later_call_for_other_conditions_goes_on_in_the_directory_of_the_first(tmp_path: Path) -> None:
    calls = [msgspec.structs.replace(PLAN, only=(name,)) for name in ("sage", "sft_grpo")]
    assert [conflicting_values(tmp_path, plan) for plan in calls] == [None, None]
    begun = msgspec.json.decode((tmp_path / "plan.json").read_bytes(), type=ExperimentPlan)
    for plan in calls:
        for trial in search_trials(plan):
            assert begun.settings(trial) == PLAN.settings(trial)
            train(tmp_path, trial, 40.0)
        evaluate(tmp_path, plan.only[0], 0, solved=15)
    order = ["--work", str(tmp_path), "--out", str(tmp_path), "--table-only", "--only", "sft_grpo"]
    shown = CliRunner().invoke(reproduce, order, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    rows = msgspec.json.decode((tmp_path / "reproduce.json").read_bytes())["rows"]
    assert {row["name"]: row["lr"] for row in rows} == dict.fromkeys(("sft_grpo", "sage"), PLAN.lrs[0])
    drawn = (tmp_path / "reproduce.svg").read_text()
    assert all(LABELS[name].strip("*") in drawn for name in ("sft_grpo", "sage"))


def test_rows_hold_only_evaluated_seeds_and_name_them(tmp_path: Path) -> None:
    for seed in (0, 2):
        evaluate(tmp_path, "sage", seed, solved=15)
    [row] = read_rows(tmp_path, PLAN, {"sage": 1e-3})
    assert (row.name, row.seeds, row.lr) == ("sage", [0, 2], 1e-3)
    assert row.metrics.sgc.mean == pytest.approx(75.0)


def test_differences_are_paired_by_the_seeds_of_both(tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluate(tmp_path, "sage", seed, solved=15)
    evaluate(tmp_path, "sft_grpo", 0, solved=10)
    found = differences(tmp_path, PLAN)
    assert set(found) == {"sft_grpo"}
    assert found["sft_grpo"].sgc.mean == pytest.approx(25.0)


def test_the_table_and_the_file_agree(tmp_path: Path) -> None:
    for row, solved in (("sage", 15), ("sft_grpo", 10)):
        evaluate(tmp_path, row, 0, solved)
    rows, compared = read_rows(tmp_path, PLAN, {}), differences(tmp_path, PLAN)
    written = as_json(rows, compared)
    assert [row["name"] for row in written["rows"]] == ["sft_grpo", "sage"]
    assert written["rows"][1]["sgc"]["mean"] == pytest.approx(75.0)
    table = as_markdown(rows, compared)
    assert f"| {LABELS['sage']} | 1 | 75.0 [" in table
    assert "| +25.0 [" in table


def test_rows_with_nothing_or_everything_solved_have_an_interval_with_a_width(tmp_path: Path) -> None:
    for row, solved in (("prompt_only", 0), ("sage", 20)):
        evaluate(tmp_path, row, 0, solved)
    rows = read_rows(tmp_path, PLAN, {})
    nothing, everything = as_json(rows, {})["rows"]
    for metric in ("tgc", "sgc"):  # of 20 scenarios: 1 - 0.025 ** (1 / 20)
        assert nothing[metric] == {"mean": 0.0, "low": 0.0, "high": 16.8}
        assert everything[metric] == {"mean": 100.0, "low": 83.2, "high": 100.0}
    table = as_markdown(rows, {})
    assert f"| {LABELS['prompt_only']} | 1 | 0.0 [0.0, 16.8] | 0.0 [0.0, 16.8] |" in table
    assert f"| {LABELS['sage']} | 1 | 100.0 [83.2, 100.0] | 100.0 [83.2, 100.0] |" in table


def test_the_chart_draws_every_condition_inside_its_frame() -> None:
    curves = {"one": [[(4, 10.0), (8, 80.0)], [(4, 30.0), (8, 60.0)]], "two": [[(4, 0.0)]]}
    figure = ElementTree.fromstring(draw_curves(curves, ylabel="SGC"))
    lines = [each for each in figure.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 2
    first = [tuple(map(float, point.split(","))) for point in lines[0].attrib["points"].split()]
    assert first[0][1] > first[1][1]  # higher is nearer to the top
    assert all(0 <= x <= 640 and 0 <= y <= 360 for x, y in first)


async def test_a_step_whose_validation_is_interrupted_is_validated_and_not_trained_again(tmp_path: Path) -> None:
    plan = ExperimentPlan(steps=1, pairs=1, group=2, validate_every=1, validation=2, only=("sage",))
    trial = Trial("sage_no_sft", 0, 1e-3)  # of a later call with another `only`
    finished = trial_file(tmp_path, trial)
    checkpoint, curve = finished.with_name(FIRST_STEP), finished.with_name("curve.json")
    settings = experiment_settings(plan, tmp_path)
    async with open_stack(open_environment(plan.environment), "scenario", settings, plan.limits) as stack:
        runner = TrialRunner(plan, tmp_path, stack, settings)
        first = asyncio.create_task(runner.train(trial))
        while not checkpoint.exists():
            assert not first.done()
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        learned = checkpoint.stat().st_mtime_ns
        [interrupted] = msgspec.json.decode(curve.read_bytes())
        assert "validation" not in interrupted
        await runner.train(trial)
        [resumed] = msgspec.json.decode(curve.read_bytes())
        assert interrupted.items() < resumed.items()
        assert (tmp_path / "adapters" / resumed["adapter"] / WEIGHTS).exists()
        for path in (finished, curve):  # as if it was interrupted between the checkpoint and the metrics
            path.unlink()
        await runner.train(trial)
    trained = msgspec.json.decode(finished.read_bytes(), type=TrialResult)
    assert checkpoint.stat().st_mtime_ns == learned
    assert (trained.best, trained.adapter) == (1, resumed["adapter"])
    assert trained.curve == [{name: resumed[name] for name in ("step", "validation", "adapter")}]


@pytest.mark.slow
async def test_the_start_may_be_taught_beside_skills_that_do_not_fit(tmp_path: Path) -> None:
    lengths = []
    for crowded in (0.0, 1.0):
        work = tmp_path / str(crowded)
        work.mkdir()
        sft = msgspec.structs.replace(PLAN.sft, steps=1)
        plan = msgspec.structs.replace(PLAN, crowded=crowded, demonstrated=2, sft=sft)
        await make_start(plan, work)
        samples = load_samples([work / "demonstrations.npz"])
        lengths.append(fmean(each.sampled.index(True) for each in samples))
    assert lengths[1] > lengths[0], "in tokens of the prompts, which have their signatures"


@pytest.mark.slow
async def test_a_second_call_of_a_tiny_experiment_has_nothing_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_LOOK_SECONDS", 0.05)
    plan = ExperimentPlan(steps=1, pairs=1, group=2, lrs=(1e-3,), validate_every=1, validation=2, exam=2, seeds=1)
    sft = msgspec.structs.replace(plan.sft, steps=1)
    plan = msgspec.structs.replace(plan, only=("sage",), demonstrated=2, sft=sft)
    conflicting_values(tmp_path, plan)
    await make_start(plan, tmp_path)
    finished: list[str] = []
    told: list[str] = []
    experiment = Experiment(plan, tmp_path, finished.append, told.append)
    await experiment.execute(2)
    assert len(finished) == experiment.size()
    assert told == ["train sage 0 0.001: step 1 of 1"]
    for row in ("sft_skills_off", "sage_skills_off"):  # as if the process was interrupted before its last row
        results_file(tmp_path, row, 0).unlink()
    await experiment.execute(2)
    assert {row.name for row in read_rows(tmp_path, plan, {})} == {
        *("prompt_only", "sft", "sft_skills_off", "sft_in_crowd"),
        *("sage", "sage_skills_off", "sage_in_crowd"),
    }
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "exams").iterdir()}
    await experiment.execute(2)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "exams").iterdir()} == stamps
    [trial] = search_trials(plan)
    trained = trial_file(tmp_path, trial)
    trained.unlink()
    (trained.parent / "curve.json").write_text("[]")  # as if the step was saved and its validation interrupted
    await experiment.execute(2)
    assert trained.exists()
