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


def policy_loss(
    logprobs: Tensor, terms: Terms, *, clip_low: float, clip_high: float, kl: float = 0.0
) -> tuple[Tensor, Tensor]:
    """To be minimised: - sum of weights x importance x min(s A, clip(s, 1 - low, 1 + high) A), s = p / p_old.

    With `kl`, the estimated divergence from the start is added. On fresh samples s = 1, and the gradient is that
    of REINFORCE with a baseline. Gives the loss (), and how many tokens the clip kept from learning (). Raises
    ValueError for a penalty without a reference: nothing would be penalised.
    """
    ratio = (logprobs - terms.old).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    gain = torch.minimum(ratio * terms.advantages, bounded * terms.advantages)
    loss = -(terms.weights * terms.importance * gain).sum()
    if kl:
        if terms.reference is None:
            raise ValueError("a penalty for leaving the start needs the logprobs of the start")
        loss = loss + kl * (terms.weights * divergence(logprobs, terms.reference)).sum()
    clipped = (bounded * terms.advantages < ratio * terms.advantages).sum()
    return loss, clipped.detach()


def divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Of p from the reference, estimated at each sampled token: exp(d) - d - 1 with d = log p_ref - log p.

    Its mean over tokens that p sampled is the KL divergence (Schulman 2020, "Approximating KL divergence").
    """
    distance = reference - logprobs
    return distance.exp() - distance - 1


def truncated(behaviour: Tensor, proximal: Tensor, limit: float) -> Tensor:
    """min(p / p_behaviour, limit) per token: what corrects for the policy that sampled (Espeholt et al. 2018)."""
    return (proximal - behaviour).exp().clamp(max=limit)
