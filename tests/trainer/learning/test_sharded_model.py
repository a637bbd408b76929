"""Models whose weights the processes share: no process holds all of them, and they compute what whole ones do."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.distributed import HashStore, destroy_process_group, init_process_group  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from app.base.errors import InvalidError, ModelError
from app.engine.adapter_files import WEIGHTS
from tests.bench.bench_shard_memory import accounts, write_model
from tests.support.distributed_process import SETTINGS
from tests.support.team_learner import Outcome, train
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir
from trainer.learning.adapter import attach_lora, initial_weights, with_lora
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.model import load_model
from trainer.learning.sharded_model import empty_model, read_shards, shard_units

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["qwen2", "llama"], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model whose embeddings are tied, and one with two of them."""
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), request.param, spread=0.1)


def run_team(model: Path, out: Path, *options: str) -> Outcome:
    out.mkdir()
    command = [sys.executable, "-m", "tests.support.team_learner", str(model), str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode((out / "outcome.json").read_bytes(), type=Outcome)


@pytest.mark.slow
def test_a_sharded_run_publishes_what_one_process_does(model: Path, tmp_path: Path) -> None:
    outcome = run_team(model, tmp_path / "shards", "--shard")
    assert outcome.sharded
    spec = LearnerSpec(model_dir=model, settings=SETTINGS, start=None, device="cpu")
    with open_learner(spec, Team()) as learner:
        alone, stats = train(learner, tmp_path / "alone")
    found = load_file(tmp_path / "shards" / outcome.adapter / WEIGHTS)
    for name, each in load_file(alone.path / WEIGHTS).items():
        torch.testing.assert_close(found[name], each, atol=2e-6, rtol=1e-4)
    assert outcome.stats is not None
    assert stats is not None
    assert outcome.stats.kl_to_start == pytest.approx(stats.kl_to_start, rel=1e-3)
    assert outcome.probe is not None
    assert alone.probe is not None
    assert outcome.probe.prompt_ids == alone.probe.prompt_ids
    published = [each for each in (tmp_path / "shards").iterdir() if each.is_dir()]
    assert len(published) == 2, "one adapter after each round"
    for one, other in zip(outcome.probe.points, alone.probe.points, strict=True):
        assert (one.logprob, one.base) == pytest.approx((other.logprob, other.base), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen2"], indirect=True)
def test_shards_in_bfloat16_continue_an_adapter_as_copies_do(model: Path, tmp_path: Path) -> None:
    """The base in bfloat16 and the adapter in float32, in one group of FSDP2."""
    start = make_adapter(model, tmp_path / "start", seed=1)
    options = ["--dtype", "bfloat16", "--start", str(start)]
    shards = run_team(model, tmp_path / "shards", "--shard", *options)
    copies = run_team(model, tmp_path / "copies", *options)
    expected = load_file(tmp_path / "copies" / copies.adapter / WEIGHTS)
    found = load_file(tmp_path / "shards" / shards.adapter / WEIGHTS)
    before = load_file(start / WEIGHTS)
    for name, each in expected.items():
        assert each.dtype == torch.float32
        assert not torch.equal(each, before[name])
        torch.testing.assert_close(found[name], each, atol=2e-6, rtol=1e-4)
    assert shards.probe is not None
    assert copies.probe is not None
    for one, other in zip(shards.probe.points, copies.probe.points, strict=True):
        assert (one.logprob, one.base) == pytest.approx((other.logprob, other.base), abs=1e-3)


@pytest.mark.slow
def test_no_process_ever_holds_all_of_a_sharded_model(tmp_path: Path) -> None:
    """Of 463 MB in 24 layers of 18 MB each, two processes have half each, and gather a few layers at once."""
    write_model(tmp_path, layers=24, width=768)
    for account in accounts(tmp_path, 2, shard=True, dtype="bfloat16"):
        assert account.whole > 450
        assert account.own == pytest.approx(account.whole / 2, rel=0.01)
        assert account.largest < account.whole / 20
        assert account.loading < 0.7 * account.whole
        assert account.update < 0.85 * account.whole


def test_an_empty_model_has_no_weights_and_the_buffers_of_a_loaded_one(model: Path) -> None:
    empty, loaded = empty_model(model, torch.float32, CPU), load_model(model, CPU)
    assert {name: each.shape for name, each in empty.named_parameters()} == {
        name: each.shape for name, each in loaded.named_parameters()
    }
    assert all(each.is_meta for each in empty.parameters())
    buffers = dict(empty.named_buffers())
    assert buffers
    for name, each in loaded.named_buffers():
        assert torch.equal(buffers[name], each)
    assert (empty.get_input_embeddings().weight is empty.get_output_embeddings().weight) == (
        loaded.config.tie_word_embeddings is True
    )


def test_a_new_adapter_is_the_same_for_a_seed_with_and_without_weights(model: Path) -> None:
    weights = initial_weights(attach_lora(empty_model(model, torch.bfloat16, CPU), 4, 8), None, seed=3)
    whole = with_lora(load_model(model, CPU), 4, 8, seed=3)
    lora = {name: each for name, each in whole.named_parameters() if "lora_" in name}
    assert weights.keys() == lora.keys()
    assert all(torch.equal(each, lora[name]) for name, each in weights.items())


@pytest.fixture
def alone() -> Iterator[None]:
    """This process as the only one of a group."""
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    destroy_process_group()


def sharded(model: Path) -> PeftModel:
    policy = attach_lora(empty_model(model, torch.float32, CPU), 4, 8)
    for each in [*shard_units(policy), policy]:
        fully_shard(each, mesh=init_device_mesh("cpu", (1,)))
    return policy


@pytest.mark.usefixtures("alone")
def test_weights_are_read_from_one_file_or_several(model: Path, tmp_path: Path) -> None:
    load_model(model, CPU).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    expected = dict(with_lora(load_model(model, CPU), 4, 8).named_parameters())
    for path in (model, tmp_path):
        policy = sharded(path)
        read_shards(policy, path, initial_weights(policy, None, 0), CPU)
        for name, each in policy.named_parameters():
            assert isinstance(each, DTensor)
            assert torch.equal(each.full_tensor(), expected[name])
            assert each.requires_grad == ("lora_" in name)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("rename", "its files name no model.layers.1.mlp.up_proj.weight"),
        ("cut", "asks for"),
        ("damage", "model.safetensors cannot be read"),
        ("remove", "neither model.safetensors nor"),
    ],
)
def test_files_that_do_not_fit_are_refused(model: Path, tmp_path: Path, spoil: str, message: str) -> None:
    weights, name = load_file(model / "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    spoiled = tmp_path / "model.safetensors"
    if spoil == "rename":
        weights["other"] = weights.pop(name)
    if spoil == "cut":
        weights[name] = weights[name][:-1].clone()
    save_file(weights, spoiled)
    if spoil == "damage":
        spoiled.write_bytes(b"\xff" * 100)
    if spoil == "remove":
        spoiled.unlink()
    policy = sharded(tmp_path)
    with pytest.raises(ModelError, match=message):
        read_shards(policy, tmp_path, initial_weights(policy, None, 0), CPU)


def test_models_that_cannot_be_sharded_are_refused(model: Path, tmp_path: Path) -> None:
    policy = attach_lora(empty_model(model, torch.float32, CPU), 4, 8)
    setattr(policy.get_base_model(), "_no_split_modules", None)  # noqa: B010  torch types no such attribute
    with pytest.raises(InvalidError, match="names no layers to shard it by: set SAGE_TRAIN_SHARD=0"):
        shard_units(policy)
    config = json.loads((model / "config.json").read_text())
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantized}))
    with pytest.raises(ModelError, match="cannot be sharded: its weights are quantized"):
        empty_model(tmp_path, torch.float32, CPU)
    with pytest.raises(ModelError, match="cannot be sharded"):
        empty_model(tmp_path / "missing", torch.float32, CPU)
