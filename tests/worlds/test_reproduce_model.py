"""The experiment with a pretrained model: environments, start, a table for each split, and a tiny one whole."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner, Result

from app.agent.rollout import RolloutLimits
from app.base.errors import InvalidError, ModelMemoryError
from app.base.model_catalog import SEED
from tests.support.task_results import result
from tests.support.tiny_model import make_model_dir
from trainer.environment import open_environment
from trainer.learning.adapter import publish, with_lora
from trainer.learning.model import load_model
from trainer.worlds.commands import reproduce
from trainer.worlds.mixed import load_environment
from trainer.worlds.recipes import HELD_OUT
from trainer.worlds.reproduce.findings import differences, read_rows
from trainer.worlds.reproduce.plan import PRETRAINED, ExperimentPlan, conflicting_values, search_trials
from trainer.worlds.reproduce.run import Experiment
from trainer.worlds.reproduce.start import experiment_settings, find_start, import_start, update_device
from trainer.worlds.reproduce.trial import RowResults, results_file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = make_model_dir(tmp_path_factory.mktemp("tiny") / "tiny-model")
    (path / "README.md").write_text("---\nprompt_profile: compact\n---\n")
    return path


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy = with_lora(load_model(model, torch.device("cpu")), 2, 4)
    return publish(policy, tmp_path_factory.mktemp("adapters")).path


def call(*order: str) -> Result:
    return CliRunner().invoke(reproduce, order)


def evaluate(work: Path, row: str, exam: str, solved: Sequence[bool]) -> None:
    results = [result(f"s{number}", success=success) for number, success in enumerate(solved)]
    path = results_file(work, row, 0, exam)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(RowResults(row=row, seed=0, results=results)))


def test_a_step_is_16_scenarios_of_two_tasks_and_eight_rollouts() -> None:
    assert set(PRETRAINED.conditions) == {"sft_grpo", "sage", "sage_outcome"}
    for condition in PRETRAINED.conditions.values():
        settings = condition.settings
        assert (settings.pairs, settings.chain, settings.group) == (16, 2, 8)
        assert (condition.seeds, condition.sft) == (3, True)
    assert len(search_trials(PRETRAINED)) == 3


def test_updates_use_the_device_of_the_settings_but_for_the_seed_policy(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGE_ENGINE_DEVICE", "cuda")
    plan = msgspec.structs.replace(PRETRAINED, model=str(model))
    assert update_device(plan, experiment_settings(plan, tmp_path)) == torch.device("cuda")
    seed = msgspec.structs.replace(plan, model=SEED)
    assert update_device(seed, experiment_settings(seed, tmp_path)) == torch.device("cpu")


@pytest.mark.parametrize(("setting", "profile"), [("", "brief"), ("full", "full"), ("compact", "")])
def test_trials_have_the_prompt_that_their_adapter_learned_with_unless_one_is_set(
    setting: str, profile: str, model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own is compact."""
    start = shutil.copytree(adapter, tmp_path / "adapter")
    (start / "README.md").write_text("---\nprompt_profile: brief\n---\n")
    monkeypatch.setenv("SAGE_PROMPT_PROFILE", setting)
    order = ("--model", str(model), "--adapter", str(start), "--work", str(tmp_path / "work"), "--table-only")
    assert call(*order, "--out", str(tmp_path)).exit_code == 0
    monkeypatch.delenv("SAGE_PROMPT_PROFILE")
    plan = msgspec.json.decode((tmp_path / "work" / "plan.json").read_bytes(), type=ExperimentPlan)
    assert experiment_settings(plan, tmp_path).prompt_profile == plan.profile == profile


async def test_scenarios_of_several_environments_come_by_turns_and_are_judged_by_their_own() -> None:
    environment = open_environment(PRETRAINED.environment)
    scenarios = environment.scenarios("train", 5, 3)
    assert [each.id.partition(":")[0] for each in scenarios] == ["gym", "crud", "office", "gym", "crud"]
    assert [each.template.partition(":")[0] for each in scenarios] == ["gym", "crud", "office", "gym", "crud"]
    for scenario, own in zip(scenarios, ("gym", "crud", "office?names=varied&wording=free"), strict=False):
        alone = open_environment(own).scenarios("train", 3, 3)[0]
        assert [task.instruction for task in scenario.tasks] == [task.instruction for task in alone.tasks]
        async with environment.open(scenario, scenario.tasks[0]) as world:
            assert world.task.instruction == scenario.tasks[0].instruction
            assert world.catalog.apps


@pytest.mark.parametrize("names", ["", "gym,gym", ",", "office,office?names=varied"])
def test_environments_are_mixed_by_their_names(names: str) -> None:
    with pytest.raises(InvalidError, match="name environments, each once"):
        load_environment(of=names)


def test_trials_that_do_not_fit_are_not_begun(
    model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.runs.start.memory_available", lambda: 100 << 20)
    order = ("--model", str(model), "--adapter", str(adapter), "--work", str(tmp_path / "work"))
    shown = call(*order, "--at-once", "3")
    assert isinstance(shown.exception, ModelMemoryError)
    assert "3 x 1 x rollouts of" in str(shown.exception)
    assert "or take fewer trials --at-once" in str(shown.exception)
    assert not (tmp_path / "work" / "trials").exists()


def test_a_model_without_an_adapter_says_how_to_make_one(model: Path) -> None:
    with pytest.raises(InvalidError, match=f"sage bootstrap --model {model} DIR"):
        find_start(str(model), None)


def test_an_adapter_is_only_for_another_model(adapter: Path) -> None:
    shown = call("--adapter", str(adapter))
    assert shown.exit_code == 2
    assert "name it with --model" in shown.output


def test_conditions_choose_among_the_rates_of_the_call(model: Path, adapter: Path, tmp_path: Path) -> None:
    order = ("--model", str(model), "--adapter", str(adapter), "--out", str(tmp_path), "--table-only")
    assert call(*order, "--work", str(tmp_path / "two"), "--lr", "1e-4", "--lr", "1e-3").exit_code == 0
    plan = msgspec.json.decode((tmp_path / "two" / "plan.json").read_bytes(), type=ExperimentPlan)
    assert [trial.lr for trial in search_trials(plan) if trial.condition == "sage"] == [1e-4, 1e-3]
    assert call(*order, "--work", str(tmp_path / "none"), "--lr", "0").exit_code == 2


def test_each_split_has_its_table_and_its_differences(model: Path, adapter: Path, tmp_path: Path) -> None:
    order = ("--model", str(model), "--adapter", str(adapter), "--work", str(tmp_path / "work"), "--table-only")
    titles = list(HELD_OUT)
    evaluate(tmp_path / "work", "sage", titles[0], [True] * 15 + [False] * 5)
    evaluate(tmp_path / "work", "sft_grpo", titles[0], [True] * 10 + [False] * 10)
    evaluate(tmp_path / "work", "sage", titles[1], [True] * 5 + [False] * 15)
    shown = call(*order, "--out", str(tmp_path), "--seeds", "1")
    assert shown.exit_code == 0, shown.output
    written = msgspec.json.decode((tmp_path / "reproduce_tiny-model.json").read_bytes())
    assert list(written["exams"]) == titles
    first, second, third = (written["exams"][title] for title in titles[:3])
    assert first["sage_minus"]["sft_grpo"]["tgc"]["mean"] == pytest.approx(25.0)
    assert first["sage_minus"]["sft_grpo"]["tgc"]["low"] > 0
    assert ([row["name"] for row in second["rows"]], second["sage_minus"], third["rows"]) == (["sage"], {}, [])
    assert written["plan"]["adapter"] == adapter.name
    table = (tmp_path / "reproduce_tiny-model.md").read_text()
    assert [line[3:] for line in table.splitlines() if line.startswith("## ")] == titles
    other = call(*order, "--seeds", "1", "--group", "4")
    assert "was begun with group=8" in str(other.exception)


def test_an_experiment_from_before_a_value_existed_had_its_default(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(PRETRAINED, model="seed", adapter="", exams={}, micro_batch_tokens=4096)
    old = msgspec.to_builtins(plan)
    for name in ("model", "adapter", "exams", "micro_batch_tokens"):
        del old[name]
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(old))
    assert conflicting_values(tmp_path, plan) is None
    assert conflicting_values(tmp_path, PRETRAINED) is not None


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_tiny_model_goes_through_the_whole_experiment_and_resumes(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    titles = list(HELD_OUT)[::4]
    plan = msgspec.structs.replace(
        PRETRAINED,
        model=str(model),
        adapter=adapter.name,
        exams={title: HELD_OUT[title] for title in titles},
        limits=RolloutLimits(turns=2, turn_tokens=12, task_tokens=24),
        steps=1,
        pairs=2,
        group=2,
        validate_every=1,
        validation=1,
        exam=1,
        seeds=1,
        only=("sage",),
    )
    conflicting_values(tmp_path, plan)
    import_start(adapter, tmp_path)
    import_start(adapter, tmp_path)
    await Experiment(plan, tmp_path, lambda _: None).execute(1)
    rows = ("prompt_only", "sage", "sage_skills_off", "sft", "sft_skills_off")
    files = sorted((tmp_path / "exams").rglob("*.json"))
    assert sorted(file.stem for file in files) == sorted(f"{row}-0" for _ in titles for row in rows)
    stamps = [file.stat().st_mtime_ns for file in files[1:]]
    files[0].unlink()  # as if it was interrupted before this one
    experiment = Experiment(plan, tmp_path, lambda _: None)
    await experiment.execute(1)
    assert files[0].exists()
    assert [file.stat().st_mtime_ns for file in files[1:]] == stamps
    for title in titles:
        assert {row.name for row in read_rows(tmp_path, plan, experiment.chosen(), title)} == set(rows)
        assert set(differences(tmp_path, plan, title)) == {"sft", "sage_skills_off"}
