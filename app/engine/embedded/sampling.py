"""Logits to tokens. Each row draws from a generator of its own, so neighbours never change what it draws."""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.inference_mode()
def draw(
    logits: Tensor,
    temperatures: Sequence[float],
    uniforms: Sequence[float],
    allowed: Sequence[Sequence[int]] = (),
) -> tuple[list[int], list[float]]:
    """One token per row and its logprob at temperature 1. logits: (n, vocabulary); uniforms in [0, 1).

    A row that names tokens in `allowed` draws one of them; its logprob is the model's all the same. Temperature 0
    takes the likeliest token. Else the inverse of the cumulative distribution, summed in double precision, so that
    the tail of a large vocabulary keeps its weight.
    """
    logprobs = torch.log_softmax(logits, -1)
    if any(allowed):
        logits = _masked(logits, allowed)
    greedy = [temperature == 0 for temperature in temperatures]
    if all(greedy):
        chosen = logits.argmax(-1)
    else:
        chosen = _inverse_cdf(logits, temperatures, uniforms)
        if any(greedy):
            chosen = torch.where(torch.tensor(greedy, device=logits.device), logits.argmax(-1), chosen)
    return chosen.tolist(), logprobs.gather(-1, chosen[:, None])[:, 0].tolist()


def _masked(logits: Tensor, allowed: Sequence[Sequence[int]]) -> Tensor:
    masked = logits.clone()
    for row, tokens in enumerate(allowed):
        if tokens:
            masked[row] = float("-inf")
            masked[row, list(tokens)] = logits[row, list(tokens)]
    return masked


def _inverse_cdf(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> Tensor:
    wide = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no double precision
    heat = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
    cumulative = torch.softmax(logits / heat[:, None], -1).cumsum(-1, dtype=wide)
    levels = torch.tensor(uniforms, dtype=wide, device=logits.device)[:, None] * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, levels, right=True)[:, 0]
    return found.clamp_max(logits.shape[-1] - 1)
