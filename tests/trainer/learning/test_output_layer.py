"""The output layer: logits as exact as float32, and logprobs that never need all of them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support.tiny_model import make_model_dir
from trainer.learning import model as model
from trainer.learning.batch import Batch, Sample, pad
from trainer.learning.model import (
    ExactLogits,
    TokenLogprobs,
    load_model,
    sampled_logits,
    sampled_logprobs,
    token_logprobs,
)

CPU = torch.device("cpu")
WORDS = 300


def layer(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (rows, 64), weights (WORDS, 64) and ids (rows,)."""
    generator = torch.Generator().manual_seed(rows)
    hidden, weight = (torch.randn(shape, generator=generator) for shape in ((rows, 64), (WORDS, 64)))
    return hidden.to(dtype), weight.mul_(0.3).to(dtype), torch.randint(WORDS, (rows,), generator=generator)


def exact(hidden: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The logprobs and their gradient, weighted 1, 2, 3 and so on, in float64."""
    double = hidden.detach().double().requires_grad_()
    logprobs = (double @ weight.double().t()).log_softmax(-1)[torch.arange(len(ids)), ids]
    (gradient,) = torch.autograd.grad(logprobs @ torch.arange(1.0, len(ids) + 1).double(), double)
    return logprobs.detach(), gradient


@pytest.mark.parametrize("rows_of_chunk", [1, 3, 100])
def test_logprobs_and_gradients_in_chunks_are_those_of_all_logits(
    monkeypatch: pytest.MonkeyPatch, rows_of_chunk: int
) -> None:
    monkeypatch.setitem(model._CHUNK_BYTES, "cpu", 4 * WORDS * rows_of_chunk)
    hidden, weight, ids = layer(7, torch.float32)
    found = TokenLogprobs.apply(hidden.requires_grad_(), weight, ids)
    (gradient,) = torch.autograd.grad(found @ torch.arange(1.0, 8.0), hidden)
    logprobs, expected = exact(hidden, weight, ids)
    torch.testing.assert_close(found.double(), logprobs, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(gradient.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_certain_token_has_a_gradient_beside_bfloat16_weights() -> None:
    """1 - p is far below what bfloat16 tells apart from 1: it is rounded after the subtraction, not before."""
    hidden, weight, _ = layer(5, torch.bfloat16)
    hidden *= 3
    ids = (hidden.float() @ weight.float().t()).argmax(-1)
    logprobs, expected = exact(hidden, weight, ids)
    assert logprobs.exp().max() > 0.99
    found = TokenLogprobs.apply(hidden.requires_grad_(), weight, ids)
    (gradient,) = torch.autograd.grad(found @ torch.arange(1.0, 6.0), hidden)
    torch.testing.assert_close(found.double(), logprobs, atol=1e-4, rtol=1e-4)
    for row in range(5):
        torch.testing.assert_close(
            gradient[row].double(), expected[row], atol=0.04 * expected[row].abs().max().item(), rtol=0.04
        )


def test_nothing_over_the_vocabulary_is_kept() -> None:
    hidden, weight, ids = layer(50, torch.float32)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        TokenLogprobs.apply(hidden.requires_grad_(), weight, ids)
    assert kept == [hidden.numel()]


def batch() -> Batch:
    return pad([Sample(tuple(range(9, 29)), (False,) * 10 + (True,) * 10)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_logprobs_are_those_of_its_logits(tmp_path: Path, dtype: torch.dtype) -> None:
    model = load_model(make_model_dir(tmp_path), CPU, dtype=dtype).requires_grad_(False)
    expected = sampled_logits(model, batch()).log_softmax(-1)[torch.arange(10), torch.arange(19, 29)]
    torch.testing.assert_close(sampled_logprobs(model, batch()), expected, atol=1e-5, rtol=1e-5)


def test_an_output_layer_that_is_trained_gets_its_gradient(tmp_path: Path) -> None:
    model = load_model(make_model_dir(tmp_path, "llama"), CPU)
    sampled_logprobs(model, batch()).sum().backward()
    found = model.get_output_embeddings().weight.grad
    assert found is not None
    assert found.abs().max() > 0


def test_a_layer_that_was_not_prepared_is_computed_at_once() -> None:
    head = nn.Linear(64, WORDS).requires_grad_(False)
    hidden, _, ids = layer(6, torch.float32)
    expected = head(hidden).log_softmax(-1)[torch.arange(6), ids]
    torch.testing.assert_close(token_logprobs(head, hidden, ids), expected)


def test_logits_are_not_rounded_to_bfloat16() -> None:
    """Against the same product in float64: errors of float32, and gradients of bfloat16."""
    generator = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(shape, generator=generator).bfloat16() for shape in ((5, 64), (300, 64)))
    double = hidden.double() @ weight.double().t()
    assert (double.bfloat16() - double).abs().max() > 0.01
    hidden.requires_grad_()
    found: Tensor = ExactLogits.apply(hidden, weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), double, atol=1e-4, rtol=1e-5)
    (gradient,) = torch.autograd.grad(found.log_softmax(-1)[:, 7].sum(), hidden)
    places = torch.full((5,), 7)
    wide = hidden.detach().double().requires_grad_()
    logprobs = (wide @ weight.double().t()).log_softmax(-1)[torch.arange(5), places]
    (expected,) = torch.autograd.grad(logprobs.sum(), wide)
    torch.testing.assert_close(gradient.double(), expected, atol=0.02, rtol=0.02)
