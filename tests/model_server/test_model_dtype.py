"""Which dtype is served, and how its distributions are compared."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.model_server import device
from app.model_server.decoder import Decoder, load_model
from app.model_server.device import TOLERANCE, fast_bfloat16, moved_mass, product_seconds, resolve_dtype
from tests.support.tiny_model import make_model_dir


def test_the_moved_mass_is_the_probability_placed_on_other_tokens() -> None:
    one = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]]).log()
    other = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]).log()
    assert moved_mass(one[:1], other[:1]) == pytest.approx(0.25)
    assert moved_mass(one, other) == pytest.approx(0.125)
    assert moved_mass(one, one) == 0


def test_words_that_no_one_samples_do_not_count() -> None:
    logits = torch.cat([torch.zeros(1, 10), torch.full((1, 49_000), -40.0)], -1)
    other = logits.clone()
    other[:, 10:] += torch.linspace(-3, 3, 49_000)
    one, two = torch.log_softmax(logits, -1), torch.log_softmax(other, -1)
    assert (one - two).abs().max() > 2.9
    assert moved_mass(one, two) < 1e-6


def test_a_model_with_a_large_vocabulary_is_served_in_bfloat16() -> None:
    """The largest difference of its logprobs is beyond 0.3, as that of real models of this vocabulary."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=3,
        num_key_value_heads=1,
        vocab_size=49_152,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.bfloat16().eval()
    model.set_attn_implementation("eager")
    ids = torch.tensor([[1, 2, 3, 5, 8, 13]])
    with torch.inference_mode():
        expected = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        decoder = Decoder(model, 64)
        logits = decoder.prefill([[1]], [[1, 2, 3]], [0])
        logits = decoder.prefill([[1]], [[5, 8]], [3])
        got = torch.log_softmax(torch.cat([logits, decoder.advance([[1]], [13], [5])]), -1)
    assert (got - expected[[4, 5]]).abs().max() > 0.3
    assert moved_mass(got, expected[[4, 5]]) < TOLERANCE[torch.bfloat16]


@pytest.fixture(params=[0.5, 2.0])
def times_as_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """A CPU that has the instructions, and multiplies bfloat16 so many times as fast as float32."""
    seconds = {torch.float32: 1.0, torch.bfloat16: 1 / request.param}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(device, "product_seconds", seconds.__getitem__)
    device._multiplies_bfloat16_faster.cache_clear()
    yield request.param
    device._multiplies_bfloat16_faster.cache_clear()


@pytest.mark.parametrize("saved", ["float32", "bfloat16"])
def test_auto_takes_bfloat16_only_for_weights_saved_so_and_where_it_is_fast(
    tmp_path: Path, saved: str, times_as_fast: float
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dtype": saved}))
    fast = saved == "bfloat16" and times_as_fast > 1
    assert resolve_dtype("auto", "cpu", tmp_path) == torch.float32
    assert resolve_dtype("auto", "cpu", tmp_path, "many") == (torch.bfloat16 if fast else torch.float32)
    assert resolve_dtype("auto", "mps", tmp_path) == torch.float32
    assert resolve_dtype("bfloat16", "cpu", tmp_path) == torch.bfloat16
    assert resolve_dtype("float32", "cuda", tmp_path) == torch.float32
    assert not fast_bfloat16("mps")
    assert not fast_bfloat16("mps", "many")


def test_what_is_fast_is_measured_where_the_cpu_has_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(product_seconds(dtype) > 0 for dtype in (torch.float32, torch.bfloat16))
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    device._multiplies_bfloat16_faster.cache_clear()
    assert not fast_bfloat16("cpu", "many")
    device._multiplies_bfloat16_faster.cache_clear()


def test_a_tiny_model_runs_in_bfloat16(tmp_path: Path) -> None:
    decoder = Decoder(load_model(make_model_dir(tmp_path), "cpu", torch.bfloat16), 1)
    assert decoder.cache.blocks.dtype == torch.bfloat16
    assert torch.isfinite(decoder.prefill([[1, 2]], [list(range(40))], [0])).all()
