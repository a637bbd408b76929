"""The output layer of a model: exact logits, and logprobs of given tokens without ever holding all logits.

The logits of 2,000 tokens over 49,152 words are 400 MB, and a loss over them keeps two or three such tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from transformers import PreTrainedModel

_CHUNK_BYTES = {"cpu": 32 << 20}  # of logits at a time
_CHUNK_BYTES_OF_OTHERS = 256 << 20
_CHANGED = "_logits_are_changed"


class ExactLogits(torch.autograd.Function):
    """hidden (N, D) times weight (V, D), both bfloat16: logits (N, V) in float32, never rounded to bfloat16.

    bfloat16 has 8 significant bits: a rounded logit of 20 may be off by 0.06, and so would its logprob.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return _exact_logits(hidden, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return gradients[0].to(weight.dtype) @ weight, None


class TokenLogprobs(torch.autograd.Function):
    """hidden (N, D), a frozen weight (V, D) and ids (N,): log p of each id, (N,) float32.

    The logits of a few rows at a time. The gradient of a logprob is known once its logits are, up to the factor
    that comes from the loss, so it is computed at once, (N, D), and nothing over the vocabulary is kept.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        logprobs = torch.empty(len(ids), device=hidden.device)
        directions = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        exact = weight if hidden.is_cuda else weight.float()
        for start in range(0, len(ids), rows := _rows_of_chunk(weight)):
            chunk = slice(start, start + rows)
            logits = _exact_logits(hidden[chunk], exact)
            chosen = ids[chunk, None]
            highest = logits.amax(-1, keepdim=True)
            likeliness = logits.gather(-1, chosen) - highest
            exponentials = logits.sub_(highest).exp_()  # in place: fresh memory costs more than the sums
            total = exponentials.sum(-1, keepdim=True)
            logprobs[chunk] = (likeliness - total.log())[:, 0]
            if directions is not None:  # of log p: the id's weights minus the mean of all by their probability
                excess = exponentials.div_(total).scatter_add_(-1, chosen, -torch.ones_like(total))
                directions[chunk] = -(excess.to(weight.dtype) @ weight)
        if directions is not None:
            ctx.save_for_backward(directions)
        return logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (directions,) = ctx.saved_tensors
        return (gradients[0][:, None] * directions).to(directions.dtype), None, None


def prepare_output_layer(model: PreTrainedModel) -> None:
    """Make a plain output layer compute exact logits, and `token_logprobs`. Others are left as they are."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.bias is None:
        head.forward = MethodType(_forward, head)


@torch.no_grad()
def mark_changed_logits(model: PreTrainedModel) -> None:
    """Find out by a pass whether the model scales or caps its logits after the output layer, as Granite does."""
    plain: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda *call: plain.append(call[-1]))
    logits = model(input_ids=torch.tensor([[0, 1]], device=model.device), use_cache=False).logits
    hook.remove()
    setattr(model, _CHANGED, not torch.equal(plain[-1].float(), logits.float()))


def changes_logits(model: PreTrainedModel) -> bool:
    """Whether its logits are not those of the output layer. Only the whole model computes them then."""
    return bool(getattr(model, _CHANGED, False))


def token_logprobs(head: nn.Module, hidden: Tensor, ids: Tensor) -> Tensor:
    """log p of each id, (N,) float32, after the hidden states (N, D). Logits are all kept unless the layer was
    prepared and is frozen.
    """
    prepared = getattr(head.forward, "__func__", None) is _forward
    if prepared and not any(each.requires_grad for each in head.parameters()):
        logprobs: Tensor = head(hidden, ids)  # by its call, which gathers weights that processes share
        return logprobs
    return -cross_entropy(head(hidden).float(), ids, reduction="none")


def _forward(head: nn.Linear, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
    weight = head.weight
    if ids is not None:
        logprobs: Tensor = TokenLogprobs.apply(hidden, weight, ids)
        return logprobs
    if weight.dtype is not torch.bfloat16:
        return linear(hidden, weight)
    logits: Tensor = ExactLogits.apply(hidden.flatten(0, -2), weight)
    return logits.view(*hidden.shape[:-1], -1)


def _exact_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """(N, V) float32. On a CPU `weight` may be a float32 copy of bfloat16 weights."""
    if hidden.is_cuda and weight.dtype is torch.bfloat16:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    with _bfloat16_products() if hidden.dtype is torch.bfloat16 else nullcontext():
        return linear(hidden.float(), weight.float())


@contextmanager
def _bfloat16_products() -> Iterator[None]:
    """Products of float32 matrices by a CPU's bfloat16 units, if it has any, with float32 sums.

    Three times as fast, and nothing is lost where the numbers are bfloat16's.
    """
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set at import
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _rows_of_chunk(weight: Tensor) -> int:
    limit = _CHUNK_BYTES.get(weight.device.type, _CHUNK_BYTES_OF_OTHERS)
    return max(1, limit // (4 * weight.shape[0]))
