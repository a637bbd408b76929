"""Supervised training: the adapter learns, and is the same after an interruption."""

import os
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from app.base.errors import InvalidError
from app.base.run_settings import RunKind, RunSettings
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir
from tests.trainer.learning.test_supervised import StopError, samples
from trainer.learning.supervised import SftStep
from trainer.runs.sft import SftSpec, train_sft

CPU = torch.device("cpu")
SETTINGS = RunSettings(kind=RunKind.SFT, steps=30, lr=1e-2, lora_rank=8, micro_batch_tokens=128)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture
def spec(base: Path, tmp_path: Path) -> SftSpec:
    return SftSpec(
        samples=samples(),
        settings=SETTINGS,
        base=base,
        start=None,
        directory=tmp_path / "run",
        adapters=tmp_path / "adapters",
    )


class Listener:
    """Records the steps, and raises StopError at step `dies_at`."""

    def __init__(self, dies_at: int = 0) -> None:
        self.seen: list[SftStep] = []
        self._dies_at = dies_at

    async def __call__(self, step: SftStep) -> None:
        self.seen.append(step)
        if step.index == self._dies_at:
            raise StopError


def changed(spec: SftSpec, **fields: object) -> SftSpec:
    return msgspec.structs.replace(spec, **fields)


async def test_the_published_adapter_has_learned(spec: SftSpec) -> None:
    listener = Listener()
    made = await train_sft(spec, CPU, listener)
    seen = listener.seen
    assert [step.index for step in seen] == list(range(1, 31))
    assert seen[0].loss > 4
    assert seen[-1].loss < seen[0].loss - 2
    assert made.path == spec.adapters / made.hash
    assert made.rank == 8
    weights = load_file(made.path / "adapter_model.safetensors")
    assert all("lora_" in name for name in weights)
    assert any(name.endswith("lora_B.weight") and tensor.abs().max() > 0 for name, tensor in weights.items())


@pytest.mark.parametrize("last", [10, 28, 30])
async def test_a_run_that_was_killed_and_resumed_ends_with_the_same_adapter(
    spec: SftSpec, tmp_path: Path, last: int
) -> None:
    """Before the first checkpoint, between two, and after the last step."""
    straight = await train_sft(spec, CPU, Listener())
    broken = changed(spec, directory=tmp_path / "broken", adapters=tmp_path / "again" / "adapters")
    with pytest.raises(StopError):
        await train_sft(broken, CPU, Listener(dies_at=last))
    assert "again" not in os.listdir(tmp_path)
    listener = Listener()
    assert (await train_sft(broken, CPU, listener)).hash == straight.hash
    assert listener.seen[0].index == {10: 1, 28: 26, 30: 26}[last]


async def test_a_checkpoint_holds_the_adapter_and_not_the_base(spec: SftSpec) -> None:
    await train_sft(changed(spec, settings=msgspec.structs.replace(SETTINGS, steps=1)), CPU, Listener())
    state = torch.load(spec.directory / "sft.checkpoint", weights_only=True)
    assert state["model"]
    assert all("lora_" in name for name in state["model"])


async def test_the_seed_decides_the_adapter(spec: SftSpec, tmp_path: Path) -> None:
    short = msgspec.structs.replace(SETTINGS, steps=3)
    hashes = []
    for number, seed in enumerate((1, 1, 2)):
        settings = msgspec.structs.replace(short, seed=seed)
        attempt = changed(spec, settings=settings, directory=tmp_path / f"run {number}")
        hashes.append((await train_sft(attempt, CPU, Listener())).hash)
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


async def test_it_continues_an_adapter_and_leaves_that_one_unchanged(
    spec: SftSpec, base: Path, tmp_path: Path
) -> None:
    start = make_adapter(base, tmp_path / "start", seed=3)
    before = load_file(start / "adapter_model.safetensors")
    settings = msgspec.structs.replace(SETTINGS, steps=1, lr=1e-9)
    made = await train_sft(changed(spec, start=start, settings=settings), CPU, Listener())
    after = load_file(made.path / "adapter_model.safetensors")
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)
    assert made.rank == 4
    assert load_file(start / "adapter_model.safetensors").keys() == before.keys()


async def test_an_adapter_of_another_base_is_refused(spec: SftSpec, tmp_path: Path) -> None:
    short = msgspec.structs.replace(SETTINGS, steps=1)
    other = changed(
        spec, base=make_model_dir(tmp_path / "other", "llama"), settings=short, adapters=tmp_path / "others"
    )
    start = (await train_sft(other, CPU, Listener())).path
    with pytest.raises(InvalidError, match="is for another base model"):
        await train_sft(changed(spec, start=start, directory=tmp_path / "new"), CPU, Listener())
    assert "adapters" not in os.listdir(tmp_path)


async def test_an_adapter_that_is_not_finite_is_not_published(spec: SftSpec) -> None:
    wild = msgspec.structs.replace(SETTINGS, steps=8, lr=1e30)
    with pytest.raises(InvalidError, match="not finite"):
        await train_sft(changed(spec, settings=wild), CPU, Listener())
    assert not os.listdir(spec.adapters)


async def test_gradient_checkpointing_stores_less_and_learns_the_same(spec: SftSpec, tmp_path: Path) -> None:
    losses: list[list[float]] = []
    kept: list[int] = []
    for frugal in (False, True):
        settings = msgspec.structs.replace(SETTINGS, steps=5, gradient_checkpointing=frugal)
        listener, sizes = Listener(), list[int]()

        def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            await train_sft(changed(spec, settings=settings, directory=tmp_path / f"{frugal}"), CPU, listener)
        losses.append([step.loss for step in listener.seen])
        kept.append(sum(sizes))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert kept[1] < 0.5 * kept[0]
