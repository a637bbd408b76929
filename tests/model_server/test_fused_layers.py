"""Layers of few calls, and weights packed for the CPU, have the logprobs of transformers and PEFT."""

import json
from pathlib import Path

import pytest
import torch

from app.model_server.decoder import Decoder, load_model
from app.model_server.layers import FusedLayer, HalfLinear, JoinedLinear, PackedLinear, fits_half
from app.model_server.lora import AdapterSet
from tests.support.tiny_adapter import make_adapter, plain_model, reference
from tests.support.tiny_model import make_model_dir

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7], [200, 3, 1, 4, 1, 5, 9, 2, 6], list(range(40)), [8], list(range(90, 120))]
SAMPLED = [[11, 12, 13], [7, 7, 7], [41, 42, 43], [9, 10, 11], [120, 121, 122]]
ROUTES = [0, 1, 2, 1, 2]  # of each row


def saved_model(path: Path, architecture: str, dtype: torch.dtype) -> Path:
    """With weights of norms and biases that matter."""
    model = plain_model(make_model_dir(path, architecture))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    model.to(dtype).save_pretrained(path)  # type: ignore[arg-type]
    return path


def check_against_reference(model_dir: Path, dtype: torch.dtype, tolerance: float) -> Decoder:
    """Five rows with two adapters and none in one batch: a prefill, and two steps."""
    paths = [make_adapter(model_dir, model_dir / f"{seed}", seed, rank=rank) for seed, rank in ((1, 4), (2, 3))]
    decoder = Decoder(load_model(model_dir, "cpu", dtype), 1)
    adapters = AdapterSet(decoder.model)
    for number, path in enumerate(paths, 1):
        adapters.install(number, adapters.read(path))
    adapters.routing.set(ROUTES, CPU)
    tables = [[3 * row + 1, 3 * row + 2] for row in range(len(ROUTES))]
    logits = [decoder.prefill(tables, PROMPTS, [0] * len(ROUTES))]
    for step in range(2):
        positions = [len(prompt) + step for prompt in PROMPTS]
        logits.append(decoder.advance(tables, [sampled[step] for sampled in SAMPLED], positions))
    found = torch.log_softmax(torch.stack(logits, 1), -1)
    for row, (prompt, sampled, route) in enumerate(zip(PROMPTS, SAMPLED, ROUTES, strict=True)):
        expected = reference(model_dir, paths[route - 1] if route else None, prompt, sampled)
        assert found[row].gather(-1, torch.tensor(sampled)[:, None])[:, 0].tolist() == pytest.approx(
            expected, abs=tolerance
        )
    adapters.remove(1)
    adapters.routing.set([1], CPU)
    plain = torch.log_softmax(decoder.prefill(tables[:1], PROMPTS[:1], [0])[0], -1)[SAMPLED[0][0]]
    assert plain.item() == pytest.approx(reference(model_dir, None, PROMPTS[0], SAMPLED[0])[0], abs=tolerance)
    return decoder


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16])
def test_float32_is_that_of_transformers_and_peft(tmp_path: Path, architecture: str, saved: torch.dtype) -> None:
    decoder = check_against_reference(saved_model(tmp_path, architecture, saved), torch.float32, 1e-4)
    products = {type(part.product) for part in decoder.model.modules() if isinstance(part, JoinedLinear)}
    assert products == {HalfLinear if saved == torch.bfloat16 else PackedLinear}


def test_other_layers_stay_those_of_transformers(tmp_path: Path) -> None:
    model_dir = saved_model(tmp_path, "llama", torch.float32)
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    decoder = check_against_reference(model_dir, torch.float32, 1e-4)
    assert not any(isinstance(part, FusedLayer | JoinedLinear) for part in decoder.model.modules())


def test_float16_holds_weights_that_were_saved_in_bfloat16_and_no_others() -> None:
    weight = torch.randn(20, 30)
    assert not fits_half(weight)
    assert fits_half(weight.bfloat16().float())
    assert fits_half(weight.bfloat16().float() * 2**-14)  # the smallest are below 2**-24
    assert not fits_half(weight.bfloat16().float() * 2**20)


def test_the_memory_of_packed_weights_is_counted(tmp_path: Path) -> None:
    """In bytes: two for a weight of a linear layer and four for the others; a tied output layer has its own."""
    decoder = Decoder(load_model(saved_model(tmp_path, "qwen2", torch.bfloat16), "cpu", torch.float32), 1)
    model = plain_model(tmp_path)
    linear = sum(part.weight.numel() for part in model.modules() if isinstance(part, torch.nn.Linear))
    every = sum(parameter.numel() for parameter in model.parameters())
    output = model.config.vocab_size * model.config.hidden_size
    rotary = sum(buffer.nbytes for buffer in model.buffers())
    qkv_biases = sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("bias"))
    assert decoder.weight_bytes == 2 * linear + 4 * (every - linear + output - qkv_biases) + rotary
