"""The adapter of a pretrained model: built whole, killed in every stage and resumed."""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pytest
import torch
import yaml
from safetensors.torch import load_file

from app.base.errors import InvalidError, ModelMemoryError
from app.engine.adapter_files import WEIGHTS, inspect
from tests.support.small_adapter_build import small_model, small_plan
from trainer.learning.supervised import SftSettings
from trainer.worlds.base_adapter.bootstrap import AdapterPlan, bootstrap_adapter, learn, serving_advice
from trainer.worlds.base_adapter.training import (
    CurvePoint,
    SftSegment,
    fitting_processes,
    read_steps,
    read_training_set,
    train_segment,
)

_MARKS = (  # files that are there while the stages work: demonstrations, steps, the adapter, exams
    "samples-train.msgpack",
    "training/point-000002.json",
    "training/point-000004.json",
    "exams/test-1/gym-unseen-domains-base-library-on.json",
)


def build_until(mark: Path, plan: AdapterPlan) -> None:
    """Opens nothing after the file is there, however late its parent sees it."""
    os.setsid()
    sys.addaudithook(lambda event, _: os.killpg(0, signal.SIGKILL) if event == "open" and mark.exists() else None)
    bootstrap_adapter(plan)


def kill_after(mark: Path, plan: AdapterPlan) -> None:
    """Build in a process of its own, and kill it and its children as soon as a file is there."""
    process = get_context("spawn").Process(target=build_until, args=(mark, plan))
    process.start()
    while process.is_alive() and not mark.exists():
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    assert mark.exists(), "the build ended before"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def curve_of(plan: AdapterPlan) -> list[CurvePoint]:
    lines = (plan.work / "learning-curve.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=CurvePoint) for line in lines]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, model: Path) -> AdapterPlan:
    """A build that nothing disturbed."""
    plan = small_plan(tmp_path_factory.mktemp("built"), model)
    bootstrap_adapter(plan)
    return plan


@pytest.mark.slow
def test_the_files_are_a_bfloat16_adapter_that_fits_and_its_card(built: AdapterPlan) -> None:
    weights = load_file(built.out / WEIGHTS)
    assert {each.dtype for each in weights.values()} == {torch.bfloat16}
    assert any(each.abs().sum() > 0 for name, each in weights.items() if "lora_B" in name)
    assert inspect(built.out).rank == 2
    text = (built.out / "README.md").read_text()
    assert yaml.safe_load(text.split("---")[1])["prompt_profile"] == "brief"
    assert "Built with `sage bootstrap --model small out` at commit 0123abc, by 1 processes" in text
    columns = "adapter, library on | adapter, library off | base, 1 scenarios, library on"
    assert f"### gym, unseen domains\n\n| 1 scenarios, 3 tasks | {columns} |" in text


@pytest.mark.slow
def test_the_curve_counts_what_was_read_and_has_the_exams(built: AdapterPlan) -> None:
    first, last = curve_of(built)
    steps = read_steps(built.work / "training" / "steps.jsonl")
    assert [each.step for each in steps] == [1, 2, 3, 4]
    assert (first.step, last.step) == (2, 4)
    assert last.tokens == sum(each.tokens for each in steps) > last.learned_tokens > 0
    assert first.examples == steps[0].examples + steps[1].examples
    assert last.loss == pytest.approx((steps[2].loss + steps[3].loss) / 2)
    assert last.held_out_loss < first.held_out_loss
    assert set(first.exams) == {"gym", "strangers", "office"}
    assert not last.exams


@pytest.mark.slow
def test_the_demonstrations_of_every_part_are_learned_and_none_is_held_out_as_well(built: AdapterPlan) -> None:
    train, held_out = (read_training_set(built.samples(split)) for split in ("train", "validation"))
    assert set(train.demonstrations) == {"gym", "office"}
    assert all(train.demonstrations.values())
    assert train.dropped == {}
    assert not {sample.ids for sample in train.samples} & {sample.ids for sample in held_out.samples}


@pytest.mark.slow
def test_a_build_that_is_killed_in_every_stage_gives_the_same_adapter(built: AdapterPlan, tmp_path: Path) -> None:
    plan = small_plan(tmp_path, built.model_dir)
    for mark in _MARKS:
        kill_after(plan.work / mark, plan)
        assert not (plan.out / "README.md").exists()
    bootstrap_adapter(plan)
    assert contents(plan.adapter) == contents(built.adapter)
    again = [msgspec.structs.replace(each, cpu_minutes=0) for each in curve_of(plan)]
    assert again == [msgspec.structs.replace(each, cpu_minutes=0) for each in curve_of(built)]


@pytest.mark.slow
def test_a_second_call_repeats_no_stage(built: AdapterPlan) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.work.rglob("*.json") if path.is_file()}
    samples = built.samples("train").stat().st_mtime_ns
    bootstrap_adapter(built)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert built.samples("train").stat().st_mtime_ns == samples


def test_processes_that_do_not_fit_are_not_started(model: Path, tmp_path: Path) -> None:
    huge = SftSegment(
        model_dir=model,
        start=None,
        base_name=None,
        samples=tmp_path / "none",
        held_out=tmp_path / "none",
        work=tmp_path / "work",
        settings=SftSettings(steps=1),
        rank=8,
        alpha=16,
        dtype="float32",
        device="cpu",
        since=0,
        until=1,
    )
    with pytest.raises(ModelMemoryError, match=r"100000 x training of .* or take fewer --processes"):
        train_segment(huge, processes=100_000)
    assert not huge.work.exists()


@pytest.mark.slow
def test_two_processes_learn_the_same_but_for_rounding(built: AdapterPlan, tmp_path: Path) -> None:
    plan = small_plan(tmp_path, built.model_dir, processes=2)
    plan.work.mkdir()
    for split in ("train", "validation"):
        shutil.copyfile(built.samples(split), plan.samples(split))
    recipe = msgspec.structs.replace(plan.recipe, exam_every=4)  # none but the last
    curve = learn(msgspec.structs.replace(plan, recipe=recipe))
    for ours, theirs in zip(curve, curve_of(built), strict=True):
        assert ours.held_out_loss == pytest.approx(theirs.held_out_loss, rel=1e-4)
        assert (ours.examples, ours.tokens) == (theirs.examples, theirs.tokens)


@pytest.mark.parametrize(
    ("device", "gpus", "count"), [("cpu", 0, 4), ("cuda", 1, 1), ("cuda", 3, 3), ("cuda", 8, 4), ("mps", 0, 1)]
)
def test_no_two_processes_of_a_training_share_a_gpu(device: str, gpus: int, count: int) -> None:
    assert fitting_processes(4, device, gpus) == count


def test_demonstrations_keep_their_processes_where_one_trains(model: Path, tmp_path: Path) -> None:
    plan = msgspec.structs.replace(small_plan(tmp_path, model, processes=2), device="mps")
    assert (plan.processes, plan.learners) == (2, 1)


def test_the_build_names_the_profile_to_serve_with_where_the_model_has_another(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    plan = small_plan(tmp_path, model)
    assert serving_advice(plan) == "; serve it with SAGE_PROMPT_PROFILE=brief"
    (model / "README.md").write_text("---\nprompt_profile: brief\n---\n")
    assert serving_advice(plan) == ""


def test_the_work_of_another_recipe_is_not_mixed_in(model: Path, tmp_path: Path) -> None:
    plan = small_plan(tmp_path, model)
    plan.work.mkdir()
    begun = msgspec.structs.replace(plan.recipe, lr=0.5)
    (plan.work / "recipe.json").write_bytes(msgspec.json.encode(begun))
    with pytest.raises(InvalidError, match=r"begun with lr=0\.5: use the same values, or another"):
        bootstrap_adapter(plan)


def test_another_model_in_the_same_place_is_refused(model: Path, tmp_path: Path) -> None:
    plan = small_plan(tmp_path, model)
    other = msgspec.structs.replace(plan.recipe, base="0" * 64)
    with pytest.raises(InvalidError, match="is not the model of the recipe"):
        bootstrap_adapter(msgspec.structs.replace(plan, recipe=other))
    assert not plan.work.exists()
