"""Adapters: attached, published complete or not at all, named by their content, refused if not fit to serve."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from app.base.errors import InvalidError, StorageError
from app.engine.adapter_files import CONFIG, WEIGHTS, inspect
from tests.support.small_disk import small_disk
from tests.support.tiny_adapter import make_adapter, reference
from tests.support.tiny_model import make_model_dir
from trainer.learning.adapter import LogprobModel, check_adapter, publish, with_lora
from trainer.learning.batch import Sample, pad
from trainer.learning.model import load_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def new_policy(model_dir: Path, *, spread: float = 0.1, seed: int = 0) -> PeftModel:
    model = with_lora(load_model(model_dir, CPU), 4, 8, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, spread, generator=generator)
    return model


def test_a_new_adapter_changes_nothing_yet_and_is_the_same_for_a_seed(model_dir: Path) -> None:
    ids = torch.arange(9)[None]
    with torch.no_grad():
        fresh = with_lora(load_model(model_dir, CPU), 4, 8)(input_ids=ids).logits
        torch.testing.assert_close(fresh, load_model(model_dir, CPU)(ids).logits)
    torch.manual_seed(99)
    one, again, other = (with_lora(load_model(model_dir, CPU), 4, 8, seed=seed).state_dict() for seed in (1, 1, 2))
    name = next(name for name in one if "lora_A" in name)
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])


def test_a_published_adapter_is_named_by_its_content_and_has_no_other_files(
    model_dir: Path, tmp_path: Path
) -> None:
    first = publish(new_policy(model_dir), tmp_path / "a")
    again = publish(new_policy(model_dir), tmp_path / "b")
    other = publish(new_policy(model_dir, seed=1), tmp_path / "a")
    assert first.hash == again.hash != other.hash
    assert first.rank == 4
    assert first.path == tmp_path / "a" / first.hash
    assert sorted(path.name for path in first.path.iterdir()) == [CONFIG, WEIGHTS]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted([first.hash, other.hash])
    for file in (CONFIG, WEIGHTS):
        assert (first.path / file).read_bytes() == (again.path / file).read_bytes()
    assert json.loads((first.path / CONFIG).read_text())["base_model_name_or_path"] is None


def test_an_adapter_carries_the_name_that_model_servers_have_for_its_base(model_dir: Path, tmp_path: Path) -> None:
    """vLLM loads an adapter by its name alone only if it is for the model that it serves."""
    policy = new_policy(model_dir)
    published = publish(policy, tmp_path, base="org/model")
    assert json.loads((published.path / CONFIG).read_text())["base_model_name_or_path"] == "org/model"
    assert inspect(published.path).base == "org/model"
    continued = with_lora(load_model(model_dir, CPU), 4, 8, published.path)
    assert publish(continued, tmp_path, base="org/model") == published


def test_publishing_again_leaves_the_files_as_they_are(model_dir: Path, tmp_path: Path) -> None:
    policy = new_policy(model_dir)
    first = publish(policy, tmp_path)
    before = (first.path / WEIGHTS).stat()
    assert publish(policy, tmp_path) == first
    assert (first.path / WEIGHTS).stat().st_ino == before.st_ino


def test_an_adapter_serves_as_trained_and_training_continues_from_it(model_dir: Path, tmp_path: Path) -> None:
    """The published files, read by PEFT alone, give the logprobs that the trainer had."""
    policy = new_policy(model_dir)
    published = publish(policy, tmp_path)
    prompt, sampled = [1, 2, 3], [4, 5, 6, 7]
    batch = pad([Sample((*prompt, *sampled), (False,) * 3 + (True,) * 4)])
    with torch.no_grad():
        trained = LogprobModel(policy)(batch)
        continued = with_lora(load_model(model_dir, CPU), 16, 32, published.path)
        again = LogprobModel(continued)(batch)
    assert trained.tolist() == pytest.approx(reference(model_dir, published.path, prompt, sampled), abs=1e-4)
    torch.testing.assert_close(again, trained)
    assert all(each.requires_grad for name, each in continued.named_parameters() if "lora_" in name)
    assert publish(continued, tmp_path) == published


def test_training_continues_from_an_adapter_that_peft_wrote(model_dir: Path, tmp_path: Path) -> None:
    """Without its dropout: an update needs the policy's own logprobs, also while it keeps no activations."""
    path = make_adapter(model_dir, tmp_path / "peft", seed=1)
    config = json.loads((path / CONFIG).read_text()) | {"lora_dropout": 0.5}
    (path / CONFIG).write_text(json.dumps(config))
    continued = with_lora(load_model(model_dir, CPU), 16, 32, path)
    prompt, sampled = [1, 2, 3], [4, 5, 6, 7]
    batch = pad([Sample((*prompt, *sampled), (False,) * 3 + (True,) * 4)])
    with torch.no_grad():
        found = LogprobModel(continued.train())(batch)
    assert found.tolist() == pytest.approx(reference(model_dir, path, prompt, sampled), abs=1e-4)
    assert publish(continued, tmp_path / "out").rank == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_published(model_dir: Path, tmp_path: Path, value: float) -> None:
    policy = new_policy(model_dir)
    next(each for name, each in policy.named_parameters() if "lora_B" in name).data[0, 0] = value
    with pytest.raises(InvalidError, match=r"not finite: .*lora_B"):
        publish(policy, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_no_files(model_dir: Path, tmp_path: Path) -> None:
    policy = new_policy(model_dir)
    with small_disk(4_000), pytest.raises(StorageError, match=f"could not be written to {tmp_path}"):
        publish(policy, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_an_adapter_of_another_base_is_refused(model_dir: Path, tmp_path: Path, architecture: str) -> None:
    """A llama of other width and fewer layers, and a model of the same kind whose layers were cut off."""
    if architecture == "llama":
        other = load_model(make_model_dir(tmp_path / "other", "llama"), CPU)
    else:
        other = load_model(model_dir, CPU)
        other.model.layers = other.model.layers[:2]
    published = publish(new_policy(model_dir), tmp_path / "adapters")
    with pytest.raises(InvalidError, match=f"the adapter at {published.path} is for another base model"):
        with_lora(other, 4, 8, published.path)


def test_a_directory_without_a_sound_adapter_is_refused(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no adapter at"):
        check_adapter(tmp_path / "missing")
    spoiled = publish(new_policy(model_dir), tmp_path / "a").path
    whole = (spoiled / WEIGHTS).read_bytes()
    (spoiled / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidError, match="cannot be read"):
        check_adapter(spoiled)
    with pytest.raises(InvalidError, match="cannot be read"):
        with_lora(load_model(model_dir, CPU), 4, 8, spoiled)


def test_an_adapter_with_a_nan_is_refused_as_a_start(model_dir: Path, tmp_path: Path) -> None:
    path = make_adapter(model_dir, tmp_path / "nan", seed=1, fill=float("nan"))
    with pytest.raises(InvalidError, match="not finite"):
        with_lora(load_model(model_dir, CPU), 4, 8, path)


def test_a_sound_adapter_is_read_with_its_weights(model_dir: Path, tmp_path: Path) -> None:
    published = publish(new_policy(model_dir), tmp_path)
    assert check_adapter(published.path).keys() == load_file(published.path / WEIGHTS).keys()
