"""A supervised run: does it leave an adapter that learned, and the same one after an interruption?"""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from app.errors import InvalidError
from app.run_settings import RunKind, RunSettings
from tests.test_sft import StopError, dies_at, quiet, samples
from tests.tiny_adapter import make_adapter
from tests.tiny_model import make_model_dir
from trainer.sft import Step
from trainer.sft_run import Lesson, learn

CPU = torch.device("cpu")
SETTINGS = RunSettings(kind=RunKind.SFT, steps=60, lr=5e-3, lora_rank=8, lora_alpha=16, micro_batch_tokens=128)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture
def lesson(base: Path, tmp_path: Path) -> Lesson:
    return Lesson(
        samples=samples(),
        settings=SETTINGS,
        base=base,
        start=None,
        directory=tmp_path / "run",
        adapters=tmp_path / "adapters",
    )


def changed(lesson: Lesson, **fields: object) -> Lesson:
    return msgspec.structs.replace(lesson, **fields)


def test_it_leaves_an_adapter_that_has_learned(lesson: Lesson) -> None:
    seen: list[Step] = []
    made = learn(lesson, CPU, seen.append)
    assert [step.index for step in seen] == list(range(1, 61))
    assert seen[0].loss > 4
    assert seen[-1].loss < 0.6 * seen[0].loss
    assert made.path == lesson.adapters / made.hash
    assert made.rank == 8
    weights = load_file(made.path / "adapter_model.safetensors")
    assert all("lora_" in name for name in weights)
    assert any(name.endswith("lora_B.weight") and tensor.abs().max() > 0 for name, tensor in weights.items())


@pytest.mark.parametrize("last", [10, 49, 60])
def test_a_run_that_was_killed_and_resumed_ends_with_the_same_adapter(
    lesson: Lesson, tmp_path: Path, last: int
) -> None:
    """Before the first checkpoint, between two, and after the last step."""
    straight = learn(lesson, CPU, quiet)
    broken = changed(lesson, directory=tmp_path / "broken", adapters=tmp_path / "again")
    with pytest.raises(StopError):
        learn(broken, CPU, dies_at(last))
    assert not broken.adapters.exists()
    seen: list[Step] = []
    assert learn(broken, CPU, seen.append).hash == straight.hash
    assert seen[0].index == {10: 1, 49: 26, 60: 51}[last]


def test_a_checkpoint_holds_the_adapter_and_not_the_base(lesson: Lesson) -> None:
    learn(changed(lesson, settings=msgspec.structs.replace(SETTINGS, steps=1)), CPU, quiet)
    state = torch.load(lesson.directory / "sft.checkpoint", weights_only=True)
    assert state["model"]
    assert all("lora_" in name for name in state["model"])


def test_the_seed_decides_the_adapter(lesson: Lesson, tmp_path: Path) -> None:
    short = msgspec.structs.replace(SETTINGS, steps=3)
    hashes = [
        learn(
            changed(
                lesson, settings=msgspec.structs.replace(short, seed=seed), directory=tmp_path / f"run {number}"
            ),
            CPU,
            quiet,
        ).hash
        for number, seed in enumerate((1, 1, 2))
    ]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


def test_it_goes_on_from_an_adapter_and_leaves_that_one_alone(lesson: Lesson, base: Path, tmp_path: Path) -> None:
    start = make_adapter(base, tmp_path / "start", seed=3)
    before = load_file(start / "adapter_model.safetensors")
    settings = msgspec.structs.replace(SETTINGS, steps=1, lr=1e-9)
    made = learn(changed(lesson, start=start, settings=settings), CPU, quiet)
    after = load_file(made.path / "adapter_model.safetensors")
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)
    assert made.rank == 4
    assert load_file(start / "adapter_model.safetensors").keys() == before.keys()


def test_an_adapter_of_another_base_is_refused(lesson: Lesson, tmp_path: Path) -> None:
    other = make_model_dir(tmp_path / "other", "llama")
    start = make_adapter(other, tmp_path / "start", seed=3)
    with pytest.raises(InvalidError, match="is for another base model"):
        learn(changed(lesson, start=start), CPU, quiet)
    assert not lesson.adapters.exists()


def test_an_adapter_that_went_astray_is_not_published(lesson: Lesson) -> None:
    wild = msgspec.structs.replace(SETTINGS, steps=8, lr=1e30, grad_clip=1e30)
    with pytest.raises(InvalidError, match="not finite"):
        learn(changed(lesson, settings=wild), CPU, quiet)
    assert not list(lesson.adapters.iterdir())


def test_gradient_checkpointing_changes_memory_and_not_what_is_learned(lesson: Lesson, tmp_path: Path) -> None:
    losses: list[list[float]] = []
    for frugal in (False, True):
        settings = msgspec.structs.replace(SETTINGS, steps=5, gradient_checkpointing=frugal)
        seen: list[Step] = []
        learn(changed(lesson, settings=settings, directory=tmp_path / f"{frugal}"), CPU, seen.append)
        losses.append([step.loss for step in seen])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
