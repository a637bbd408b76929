"""Training with a bfloat16 base: what is float32, and how far results are from exact ones."""

from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import PreTrainedModel

from app.model_server.device import fast_bfloat16
from tests.support.distributed_process import SETTINGS, new_learner, round_of
from tests.support.tiny_model import make_model_dir
from tests.support.trajectory_samples import rollout, sample_of
from trainer.learning.adapter import LogprobModel, with_lora
from trainer.learning.batch import pad
from trainer.learning.model import base_dtype, load_model
from trainer.learning.supervised import SftSettings, train_sft

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def test_the_base_of_an_exact_model_is_bfloat16_on_cuda_alone_unless_a_setting_says_otherwise(model: Path) -> None:
    cuda = torch.device("cuda")
    assert base_dtype("auto", CPU, model) == base_dtype("auto", torch.device("mps"), model) == torch.float32
    assert base_dtype("auto", cuda, model) == base_dtype("bfloat16", CPU, model) == torch.bfloat16
    assert base_dtype("float32", cuda, model) == torch.float32


def test_a_base_saved_in_half_precision_is_trained_in_it_where_the_cpu_multiplies_it_fast(tmp_path: Path) -> None:
    load_model(make_model_dir(tmp_path), CPU).bfloat16().save_pretrained(tmp_path)
    fast = torch.bfloat16 if fast_bfloat16("cpu", "many") else torch.float32
    assert base_dtype("auto", CPU, tmp_path) == fast
    assert base_dtype("auto", torch.device("mps"), tmp_path) == torch.float32


def test_only_the_frozen_base_is_bfloat16(model: Path) -> None:
    policy = with_lora(load_model(model, CPU, dtype=torch.bfloat16), 4, 8)
    lora = {each.dtype for name, each in policy.named_parameters() if "lora_" in name}
    base = {each.dtype for name, each in policy.named_parameters() if "lora_" not in name}
    assert (lora, base) == ({torch.float32}, {torch.bfloat16})


def test_an_update_beside_a_bfloat16_base_keeps_gradients_and_optimizer_in_float32(model: Path) -> None:
    learner = new_learner(model, dtype=torch.bfloat16)
    dtypes: set[torch.dtype] = set()
    for each in learner.model.parameters():
        if each.requires_grad:
            each.register_hook(lambda gradient: dtypes.add(gradient.dtype))
    assert learner.token_logprobs(pad([sample_of(rollout(1))])).dtype == torch.float32
    assert learner.update(round_of(1)) is not None
    assert dtypes == {torch.float32}
    state = learner.state()
    assert {each.dtype for each in state["weights"].values()} == {torch.float32}
    assert {each.dtype for own in state["moments"].values() for each in own.values()} == {torch.float32}


def test_an_update_beside_a_bfloat16_base_is_near_that_beside_a_float32_base(model: Path) -> None:
    """bfloat16 has 8 significant bits. The gradients' directions agree within a cosine of 0.99."""
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        learner = new_learner(model, dtype=dtype)
        learner.update(round_of(1))
        moments = learner.state()["moments"]
        gradients.append(torch.cat([moments[name]["exp_avg"].flatten() for name in sorted(moments)]))
    exact, found = gradients
    assert torch.nn.functional.cosine_similarity(exact, found, dim=0) > 0.99
    assert found.norm() == pytest.approx(exact.norm().item(), rel=0.05)


def test_logprobs_beside_a_bfloat16_base_are_near_those_of_float32(model: Path) -> None:
    batch = pad([sample_of(rollout(seed)) for seed in range(4)])
    with torch.no_grad():
        exact, found = (
            LogprobModel(with_lora(load_model(model, CPU, dtype=dtype), 4, 8))(batch)
            for dtype in (torch.float32, torch.bfloat16)
        )
    assert exact.std() > 0.5
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_models_own_logits_are_exact_too(tmp_path: Path, architecture: str) -> None:
    model = load_model(make_model_dir(tmp_path, architecture), CPU, dtype=torch.bfloat16)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        hidden = model.get_decoder()(ids).last_hidden_state
        head = model.get_output_embeddings().weight
        expected = hidden.float() @ head.float().t()
        found = model(ids).logits
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_supervised_steps_learn_beside_a_bfloat16_base(model: Path, tmp_path: Path) -> None:
    policy = with_lora(load_model(model, CPU, dtype=torch.bfloat16), 8, 16)
    base = cast(PreTrainedModel, policy.get_base_model())
    losses: list[float] = []
    samples = [sample_of(rollout(seed)) for seed in range(3)]
    settings = SftSettings(steps=30, lr=1e-2, warmup=3, tokens=1024)
    train_sft(base, samples, settings, tmp_path / "it.checkpoint", lambda step: losses.append(step.loss))
    assert losses[-1] < losses[0] - 1


@pytest.mark.gpu
def test_on_a_gpu_an_update_beside_a_bfloat16_base_is_near_that_of_the_cpu(model: Path) -> None:
    """The variable-length attention kernel, exact logits and mixed LoRA layers, together."""
    expected = new_learner(model).update(round_of(1))
    stats = new_learner(model, SETTINGS, "cuda", torch.bfloat16).update(round_of(1))
    assert expected is not None
    assert stats is not None
    assert stats.grad_norm == pytest.approx(expected.grad_norm, rel=0.05)
    assert stats.loss == pytest.approx(expected.loss, rel=0.05, abs=0.01)
