"""Samples tokens from logits. Each row has its own random generator, so neighbors never change its tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.inference_mode()
def sample(
    logits: Tensor,
    temperatures: Sequence[float],
    uniforms: Sequence[float],
    allowed: Sequence[Sequence[int]] = (),
) -> tuple[list[int], list[float]]:
    """One token per row and its logprob at temperature 1. logits: (n, vocabulary); uniforms in [0, 1).

    A row with tokens in `allowed` samples one of them; its logprob stays unmasked. Temperature 0 is greedy.
    Otherwise by the inverse of the cumulative distribution, summed in double precision, so that the tail of a
    large vocabulary keeps its weight.
    """
    logprobs = torch.log_softmax(logits, -1)
    if any(allowed):
        logits = _masked(logits, allowed)
    greedy = [temperature == 0 for temperature in temperatures]
    if all(greedy):
        chosen = logits.argmax(-1)
    else:
        chosen = _sample_by_inverse_cdf(logits, temperatures, uniforms)
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


def _sample_by_inverse_cdf(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> Tensor:
    wide = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no double precision
    temperature = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
    cumulative = torch.softmax(logits / temperature[:, None], -1).cumsum(-1, dtype=wide)
    levels = torch.tensor(uniforms, dtype=wide, device=logits.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, levels, right=True)[:, 0]
    return tokens.clamp_max(logits.shape[-1] - 1)
