"""SAGE's objective for given logprobs: a clipped policy gradient, as a loss to be minimized.

SAGE (arXiv 2512.17102), for the rollouts i of a group and the positions k of their chains:

    J = E (1/G) sum_i sum_k (1/|o_i^k|) sum_t min( s A_i^k, clip(s, 1 - low, 1 + high) A_i^k )
    s = p(o_t) / p_old(o_t)

Token mean inside a task, sum over positions, mean over the group; prompts and observations are not part of o. On
fresh samples s = 1 and the gradient is that of REINFORCE with a baseline.

Three policies are distinguished. The old policy, p_old, is what the clip keeps p near. For fresh samples it is the
one that sampled them, and the engine's logprobs stand for it. Stale samples are of older releases, which the paper
does not have: there it is the reference, and their terms are weighted by the truncated ratio of p_old to the
sampling policy. The reference, p_ref, is the policy at the start of the run. Were p_old of stale samples the one
at the start of each update, nothing would bound how far the updates of a run take it together.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """The inputs of the loss for N sampled tokens; all tensors (N,), logarithms natural."""

    old: Tensor  # log p_old: of fresh samples as the engine reported it, of stale ones log p_ref
    advantages: Tensor  # A
    weights: Tensor  # `token_weight` of each token's task
    importance: Tensor  # truncated importance weights of stale samples; 1 for fresh ones
    reference: Tensor | None = None  # log p_ref; None without a KL penalty


def token_weight(groups: int, group_size: int, tokens: int) -> float:
    """The weight of each of a task's `tokens` sampled tokens in the sum: 1 / (groups G |o|)."""
    return 1 / (groups * group_size * tokens)


def policy_loss(
    logprobs: Tensor, terms: Terms, *, clip_low: float, clip_high: float, kl: float = 0.0
) -> tuple[Tensor, Tensor]:
    """-J and the number of tokens whose gradient was clipped, both of shape (). `logprobs` are log p, shape (N,).

    `kl` is the weight of the KL penalty towards the reference. Raises ValueError if it is set without a reference.
    """
    ratio = (logprobs - terms.old).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    gain = torch.minimum(ratio * terms.advantages, clipped * terms.advantages)
    loss = -(terms.weights * terms.importance * gain).sum()
    if kl:
        if terms.reference is None:
            raise ValueError("a KL penalty needs the logprobs under the reference")
        loss = loss + kl * (terms.weights * kl_estimate(logprobs, terms.reference)).sum()
    gradient_clipped = (clipped * terms.advantages < ratio * terms.advantages).sum()
    return loss, gradient_clipped.detach()


def kl_estimate(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(p || p_ref), estimated at each sampled token, (N,): exp(d) - d - 1 with d = log p_ref - log p.

    Its mean over tokens that p sampled is the divergence (Schulman 2020, "Approximating KL divergence", k3).
    """
    distance = reference - logprobs
    return distance.exp() - distance - 1


def truncated_importance(old: Tensor, sampling: Tensor, limit: float) -> Tensor:
    """min(p_old / p_sampling, limit) per token, (N,): corrects for the sampling policy (Espeholt et al. 2018)."""
    return (old - sampling).exp().clamp(max=limit)
