"""Packed rows: is every sample computed as if it were alone?"""

from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MambaForCausalLM, PreTrainedModel

from tests.tiny_model import make_model_dir
from trainer.learning.batch import Sample, pad
from trainer.learning.model import load_model, sampled_logprobs
from trainer.learning.packing import PACKED, Packing, attend, can_pack

HEADS, SIZE = 4, 8
CPU = torch.device("cpu")


class Causal(nn.Module):
    """As much of an attention layer as `attend` looks at."""

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
    """(1, T, H, D): the textbook's formula for one sample."""
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
def test_what_only_the_models_own_attention_can_do_is_refused(options: dict[str, object]) -> None:
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
    """Padded is how models are computed that cannot be packed."""
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


def test_a_loaded_model_attends_packed_and_as_plain_as_before(model: PreTrainedModel, tmp_path: Path) -> None:
    """Also where nothing is packed: other callers give it ids and nothing else."""
    assert model.config._attn_implementation == PACKED
    model.save_pretrained(tmp_path)
    plain = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = torch.randint(0, 250, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-4)
