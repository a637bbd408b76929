"""SAGE's objective for given logprobs: clipped policy gradient, token mean per task, sum over positions. Pure."""

from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """N sampled tokens; all tensors (N,). Logarithms are natural."""

    old: Tensor  # log p when the update began: what the ratio is taken to
    advantages: Tensor
    weights: Tensor  # of each token in the sum: 1 / (groups x G x tokens of its task)
    importance: Tensor  # truncated importance weights of stale samples; 1 for fresh ones
    reference: Tensor | None = None  # log p under the start; None where no penalty is asked for


class Figures(NamedTuple):
    """What to watch, summed over the tokens of `Terms` with their weights where a mean is wanted."""

    clipped: Tensor  # tokens whose gradient the clip removed
    ratio_sum: Tensor
    ratio_max: Tensor
    tokens: int


def policy_loss(
    logprobs: Tensor, terms: Terms, *, clip_low: float, clip_high: float, kl: float = 0.0
) -> tuple[Tensor, Figures]:
    """To be minimised: - sum of weights x importance x min(s A, clip(s, 1 - low, 1 + high) A), s = p / p_old.

    With `kl`, the estimator exp(d) - d - 1, d = reference - logprobs, of the divergence from the start is added
    (Schulman 2020). On fresh samples s = 1, and the gradient is that of REINFORCE with a baseline.
    """
    ratio = (logprobs - terms.old).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    gain = torch.minimum(ratio * terms.advantages, bounded * terms.advantages)
    loss = -(terms.weights * terms.importance * gain).sum()
    if kl and terms.reference is not None:
        distance = terms.reference - logprobs
        loss = loss + kl * (terms.weights * (distance.exp() - distance - 1)).sum()
    with torch.no_grad():
        clipped = (bounded * terms.advantages < ratio * terms.advantages).sum()
        return loss, Figures(clipped, ratio.sum(), ratio.max(), len(ratio))


def truncated(behaviour: Tensor, proximal: Tensor, limit: float) -> Tensor:
    """min(p / p_behaviour, limit) per token: what corrects for the policy that sampled (Espeholt et al. 2018)."""
    return (proximal - behaviour).exp().clamp(max=limit)
