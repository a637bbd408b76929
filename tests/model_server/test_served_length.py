"""The embedded engine serves no sequence that it would compute otherwise than transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Phi3Config

from app.engine.tokenizer import ChatTokenizer
from app.model_server.api import CompletionRequest, EngineService, ParameterError
from app.model_server.decoder import Decoder, load_model
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import EngineMetrics, Scheduler
from tests.support.tiny_model import write_tokenizer

POSITIONS, WINDOW, SHORT = 256, 40, 50
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def saved_model(path: Path, kind: Any, **options: Any) -> Path:
    config = kind(
        vocab_size=write_tokenizer(path),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        pad_token_id=0,
        **options,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def service_of(model_dir: Path) -> EngineService:
    decoder = Decoder(load_model(model_dir, "cpu", torch.float32), 8)
    adapters = AdapterSet(decoder.model)
    scheduler = Scheduler(decoder, adapters, EngineMetrics(), on_death=lambda: None)
    return EngineService(ChatTokenizer.load(model_dir), adapters, scheduler, 1)


@pytest.mark.parametrize(("window", "longest"), [(WINDOW, WINDOW), (None, POSITIONS), (4 * POSITIONS, POSITIONS)])
def test_no_sequence_is_longer_than_the_window_of_attention(
    tmp_path: Path, window: int | None, longest: int
) -> None:
    service = service_of(saved_model(tmp_path, MistralConfig, sliding_window=window))
    assert service.max_length == longest
    service.prepare(CompletionRequest(prompt=[5] * (longest - 1), max_tokens=1))
    with pytest.raises(ParameterError, match=f"maximum context length is {longest} tokens"):
        service.prepare(CompletionRequest(prompt=[5] * longest, max_tokens=1))


def test_no_sequence_is_so_long_that_it_turns_the_positions_of_its_neighbors(tmp_path: Path) -> None:
    options = {"rope_scaling": LONGROPE, "original_max_position_embeddings": SHORT}
    assert service_of(saved_model(tmp_path, Phi3Config, **options)).max_length == SHORT
