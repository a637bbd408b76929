"""Models whose layers are not called as those of most others: served right, or refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2MoeConfig, StableLmConfig

from app.base.errors import ModelError
from app.model_server.decoder import Decoder, load_model
from app.model_server.lora import AdapterSet
from tests.support.tiny_adapter import make_adapter, reference

SIZES = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = "shared_expert.up_proj"  # reads the tokens of all rows, one after the other


def saved(path: Path, kind: Any, **options: Any) -> Path:
    torch.manual_seed(0)
    config = kind(initializer_range=0.3, **SIZES, **HEADS, **options)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def test_an_expert_that_all_tokens_share_has_the_adapter_of_each_row(tmp_path: Path) -> None:
    experts = EXPERTS | {"shared_expert_intermediate_size": 16}
    model_dir = saved(tmp_path / "model", Qwen2MoeConfig, **experts)
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1, targets=[SHARED])
    decoder = Decoder(load_model(model_dir, "cpu", torch.float32), 1)
    adapters = AdapterSet(decoder.model)
    adapters.install(1, adapters.read(adapter))
    adapters.routing.set([0, 1], torch.device("cpu"))
    prompts = [[5, 6, 7], [20, 3, 1, 4, 1, 5]]
    found = torch.log_softmax(decoder.prefill([[1], [2]], prompts, [0, 0]), -1)[:, 9]
    expected = [
        reference(model_dir, path, prompt, [9]) for path, prompt in zip((None, adapter), prompts, strict=True)
    ]
    assert found.tolist() == pytest.approx([value for [value] in expected], abs=1e-4)


def test_layers_that_hand_nothing_to_their_attention_are_refused(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, StableLmConfig), "cpu", torch.float32)
    with pytest.raises(ModelError, match=r"cannot serve a StableLmForCausalLM: .*Serve it with vLLM"):
        Decoder(model, 1)
