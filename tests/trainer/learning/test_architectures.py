"""Logprobs in training are those of transformers, whatever a model's attention and output layer do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GptOssConfig,
    GraniteConfig,
    NemotronConfig,
    PreTrainedModel,
    Qwen3Config,
)

from app.base.errors import ModelError
from trainer.learning.adapter import LogprobModel, with_lora
from trainer.learning.batch import Batch, Sample, pad
from trainer.learning.model import load_model, sampled_logprobs
from trainer.learning.sharded_model import empty_model

CPU = torch.device("cpu")
SIZES = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SCALES = {"logits_scaling": 8.0, "logit_scale": 0.25}
LENGTHS = (33, 20)


def saved(path: Path, kind: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = kind(pad_token_id=0, initializer_range=0.3, **SIZES, **HEADS, **EXPERTS, **SCALES)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(path)
    return model


def some_samples() -> Batch:
    """They begin alike, so that the second one is packed without what it shares."""
    return pad([Sample(tuple(range(1, each + 1)), (False,) * 17 + (True,) * (each - 17)) for each in LENGTHS])


@torch.no_grad()
def by_transformers(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """One by one, without padding."""
    found = []
    for row, length in enumerate(LENGTHS):
        ids = batch.ids[row, :length]
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        found.append(logprobs[batch.sampled[row, 1:length]])
    return torch.cat(found)


@pytest.mark.parametrize(
    "kind", [Qwen3Config, Gemma2Config, GptOssConfig, GraniteConfig, CohereConfig, NemotronConfig]
)
def test_logprobs_are_those_of_transformers(kind: Any, tmp_path: Path) -> None:
    """Caps of scores and logits, sinks, scales of logits, and layers that hand nothing to their attention."""
    expected = by_transformers(saved(tmp_path, kind), some_samples())
    model = load_model(tmp_path, CPU)
    with torch.no_grad():
        found = sampled_logprobs(model, some_samples())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_an_adapter_of_a_model_that_scales_its_logits_is_trained_by_them(tmp_path: Path) -> None:
    saved(tmp_path, GraniteConfig)
    policy = LogprobModel(with_lora(load_model(tmp_path, CPU), 4, 8))
    logprobs = policy(some_samples())
    logprobs.sum().backward()
    assert all(each.grad is not None for each in policy.parameters() if each.requires_grad)
    assert policy(some_samples(), most_likely=True).shape == logprobs.shape


@pytest.mark.parametrize("kind", [GraniteConfig, CohereConfig, Gemma2Config])
def test_a_model_that_changes_its_logits_is_not_sharded(kind: Any, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    with pytest.raises(ModelError, match="changes logits after the output layer; set SAGE_TRAIN_SHARD=0"):
        empty_model(tmp_path, torch.float32, CPU)
