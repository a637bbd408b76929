"""Packed rows: every sample is computed as if it were alone, by the loop and by the variable-length kernel."""

from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaForCausalLM, MambaForCausalLM, PreTrainedModel

from tests.support.tiny_model import make_model_dir
from trainer.learning.batch import Sample, pad
from trainer.learning.model import (
    PACKED,
    Packing,
    attend,
    attend_at_once,
    can_pack,
    fits_kernel,
    load_model,
    reach,
    sampled_logprobs,
)

HEADS, SIZE = 4, 8
CPU = torch.device("cpu")


class Causal(nn.Module):
    """The part of an attention layer that `attend` reads."""

    is_causal = True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    torch.set_num_threads(1)
    return load_model(make_model_dir(tmp_path_factory.mktemp("tiny"), "llama"), torch.device("cpu"))


def parts(*lengths: int, heads: int = HEADS) -> list[Tensor]:
    """Random tensors (1, H, T, D) for samples of these lengths."""
    generator = torch.Generator().manual_seed(sum(lengths) + heads)
    return [torch.randn(1, heads, length, SIZE, generator=generator) for length in lengths]


def by_hand(query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None = None) -> Tensor:
    """(1, T, H, D): the textbook formula for one sample."""
    length = query.shape[2]
    places = torch.arange(length)
    back = places[:, None] - places[None, :]
    seen = (back >= 0) & (back < (window or length))
    scores = query @ key.transpose(2, 3) * scale
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 4])
def test_each_sample_attends_to_itself_alone(window: int | None) -> None:
    lengths = [5, 1, 9]
    query, key, value = (parts(*lengths) for _ in range(3))
    value = [part + 1 for part in value]
    q, k, v = (torch.cat(each, 2) for each in (query, key, value))
    found, _ = attend(
        Causal(), q, k, v, None, scaling=0.3, packing=Packing.of(lengths, CPU), sliding_window=window
    )
    expected = [by_hand(*each, scale=0.3, window=window) for each in zip(query, key, value, strict=True)]
    torch.testing.assert_close(found, torch.cat(expected, 1))


@pytest.mark.parametrize("window", [None, 1, 4, 7, 20])
def test_the_kernel_is_asked_for_the_attention_that_the_loop_computes(window: int | None) -> None:
    """The mask that the kernel's arguments stand for by its documentation, given to a dense attention."""
    lengths = [5, 1, 9, 3]
    query, key, value = (torch.cat(parts(*lengths), 2) + number for number in range(3))
    packing, (before, after) = Packing.of(lengths, CPU), reach(window)
    assert packing.longest == 9
    assert packing.offsets.dtype == torch.int32
    sample = torch.bucketize(torch.arange(18), packing.offsets[1:], right=True)
    distance = torch.arange(18)[:, None] - torch.arange(18)[None, :]
    mask = (sample[:, None] == sample[None, :]) & (distance >= -after)
    if before >= 0:
        mask &= distance <= before
    dense = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3).transpose(1, 2)
    looped, _ = attend(Causal(), query, key, value, None, scaling=0.3, packing=packing, sliding_window=window)
    torch.testing.assert_close(looped, dense)


def test_the_kernel_takes_and_gives_the_shapes_of_the_loop() -> None:
    """Without a GPU: on the device "meta" the kernel checks its arguments and computes nothing."""
    query, key = (torch.empty(1, heads, 18, 16, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    packing = Packing.of([5, 1, 9, 3], torch.device("meta"))
    found = attend_at_once(query, key, key, packing, 0.3, None)
    assert (found.shape, found.dtype, found.device) == ((1, 18, 4, 16), query.dtype, query.device)


def test_the_kernel_is_used_for_16_bits_and_heads_of_its_sizes() -> None:
    assert fits_kernel(torch.empty(1, 4, 3, 128, dtype=torch.bfloat16))
    assert not fits_kernel(torch.empty(1, 4, 3, 128))
    assert not fits_kernel(torch.empty(1, 4, 3, 12, dtype=torch.bfloat16))
    assert not fits_kernel(torch.empty(1, 4, 3, 512, dtype=torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 1, 4, 70])
def test_the_kernel_computes_what_the_loop_does(window: int | None) -> None:
    """Outputs and gradients, with shared heads; within bfloat16's rounding of the loop in float32."""
    lengths, generator = [5, 1, 90, 33], torch.Generator().manual_seed(3)
    shapes = [(1, heads, sum(lengths), 64) for heads in (4, 2, 2, 4)]
    query, key, value, seed = (torch.randn(shape, generator=generator).cuda().bfloat16() for shape in shapes)
    packing, results = Packing.of(lengths, torch.device("cuda")), []
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (each.to(dtype, copy=True).requires_grad_() for each in (query, key, value))
        found, _ = attend(Causal(), q, k, v, None, scaling=0.125, packing=packing, sliding_window=window)
        found.backward(seed.transpose(1, 2).to(dtype))
        results.append([found.detach(), *(each.grad for each in (q, k, v) if each.grad is not None)])
    for expected, each in zip(*results, strict=True):
        torch.testing.assert_close(each.float(), expected, atol=0.05, rtol=0.05)


def test_heads_may_share_keys_and_values() -> None:
    (query,), (key,), (value,) = parts(6), parts(6, heads=2), parts(6, heads=2)
    found, _ = attend(Causal(), query, key, value, None, scaling=0.5, packing=Packing.of([6], CPU))
    wide_key, wide_value = (each.repeat_interleave(2, dim=1) for each in (key, value))
    torch.testing.assert_close(found, by_hand(query, wide_key, wide_value, scale=0.5))


def test_without_lengths_every_row_is_a_sample() -> None:
    query, key, value = (torch.cat(parts(7, heads=4), 0).expand(3, -1, -1, -1).clone() for _ in range(3))
    query[1], value[2] = query[1] * 2, value[2] - 1
    found, _ = attend(Causal(), query, key, value, None, scaling=0.4)
    for row in range(3):
        one = slice(row, row + 1)
        torch.testing.assert_close(found[one], by_hand(query[one], key[one], value[one], scale=0.4))


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"mask": torch.ones(1, 1, 4, 4)}, {"two_sided": True}])
def test_features_of_other_attentions_are_refused(options: dict[str, object]) -> None:
    module = Causal()
    module.is_causal = not options.pop("two_sided", False)
    mask = options.pop("mask", None)
    (some,) = parts(4)
    with pytest.raises(NotImplementedError, match="plain causal"):
        attend(module, some, some, some, mask, **options)  # type: ignore[arg-type]


def test_a_model_whose_layers_carry_a_state_is_not_packed() -> None:
    assert can_pack(LlamaForCausalLM)
    assert not can_pack(MambaForCausalLM)
    assert not can_pack(None)


def test_packed_and_padded_logprobs_are_the_same(model: PreTrainedModel, tmp_path: Path) -> None:
    """Models that cannot be packed are computed padded."""
    model.save_pretrained(tmp_path)
    plain: PreTrainedModel = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    rng = Random(3)
    lengths = (7, 40, 2, 33)
    marks = [(False, *(rng.random() < 0.5 for _ in range(length - 2)), True) for length in lengths]
    batch = pad([Sample(tuple(rng.randrange(250) for _ in each), each) for each in marks])
    with torch.no_grad():
        packed, padded = sampled_logprobs(model, batch), sampled_logprobs(plain, batch)
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=1e-5)
    assert len(packed) == sum(map(sum, marks))


def test_a_loaded_model_computes_unpacked_rows_as_before(model: PreTrainedModel, tmp_path: Path) -> None:
    """Other callers give it ids and nothing else."""
    assert model.config._attn_implementation == PACKED
    model.save_pretrained(tmp_path)
    plain = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = torch.randint(0, 250, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-4)
