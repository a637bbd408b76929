"""The loss computed by hand, and its gradient against finite differences and plain REINFORCE."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from trainer.sage.loss import Terms, kl_estimate, policy_loss, truncated_importance


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def terms(
    old: Tensor,
    advantages: Tensor,
    *,
    weights: Tensor | None = None,
    importance: Tensor | None = None,
    reference: Tensor | None = None,
) -> Terms:
    ones = torch.ones_like(old)
    return Terms(
        old,
        advantages,
        ones if weights is None else weights,
        ones if importance is None else importance,
        reference,
    )


def loss_and_gradient(logprobs: Tensor, given: Terms, **options: float) -> tuple[float, list[float], int]:
    logprobs = logprobs.clone().requires_grad_()
    loss, clipped = policy_loss(logprobs, given, **({"clip_low": 0.2, "clip_high": 0.3} | options))
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return float(loss.detach()), gradient.tolist(), int(clipped)


def test_the_loss_is_the_weighted_sum_of_ratio_times_advantage() -> None:
    """Ratios 1.1 and 0.9: - (0.5 x 1.1 x 2 + 0.25 x 0.9 x -1) = -0.875, each term its own derivative by log p."""
    given = terms(tensor(log(0.5), log(0.4)), tensor(2, -1), weights=tensor(0.5, 0.25))
    loss, gradient, clipped = loss_and_gradient(tensor(log(0.55), log(0.36)), given)
    assert loss == pytest.approx(-0.875)
    assert gradient == pytest.approx([-1.1, 0.225])
    assert clipped == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "learns"),
    [
        (1.5, 1, -1.3, False),  # already much likelier: no further
        (1.5, -1, 1.5, True),  # likelier and bad: back, without limit
        (0.5, -1, 0.8, False),  # already much less likely: no further
        (0.5, 1, -0.5, True),  # less likely and good: back
        (1.3, 1, -1.3, True),  # on the edge
        (1.2, -1, 1.2, True),
    ],
)
def test_the_clip_stops_moves_further_away_and_allows_moves_back(
    ratio: float, advantage: float, expected: float, learns: bool
) -> None:
    loss, gradient, clipped = loss_and_gradient(tensor(log(ratio)), terms(tensor(0), tensor(advantage)))
    assert loss == pytest.approx(expected)
    assert (gradient[0] != 0) == learns
    assert clipped == (not learns)


def test_each_side_has_its_own_clip_range() -> None:
    given = terms(tensor(0, 0), tensor(1, -1))
    loss, _, clipped = loss_and_gradient(tensor(log(3), log(0.1)), given, clip_low=0.6, clip_high=0.5)
    assert loss == pytest.approx(-1.5 + 0.4)
    assert clipped == 2


def test_on_fresh_samples_the_gradient_is_reinforce_with_a_baseline() -> None:
    """The derivative of - sum of weight x advantage x log p by the logits, with the softmax between."""
    torch.manual_seed(3)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    sampled = torch.tensor([0, 4, 2, 2, 1, 3])
    rewards = tensor(1, 0, 0.5, 2, -1, 1)
    advantages, weights = rewards - rewards.mean(), torch.rand(6, dtype=torch.float64)
    logprobs = logits.log_softmax(-1).gather(1, sampled[:, None])[:, 0]
    given = terms(logprobs.detach(), advantages, weights=weights)
    loss, _ = policy_loss(logprobs, given, clip_low=0.2, clip_high=0.2)
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (plain,) = torch.autograd.grad(-(weights * advantages * logprobs).sum(), logits)
    torch.testing.assert_close(found, plain)
    assert found.abs().max() > 0.1


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_the_gradient_is_that_of_finite_differences(kl: float) -> None:
    """Ratios between and beyond the clips, none on an edge, advantages of both signs."""
    old = tensor(-1, -2, -0.5, -3, -1.5, -0.7)
    steps = tensor(0.05, -0.1, 0.6, -0.7, 0.5, -0.6)
    advantages, weights = tensor(1, -2, 0.5, -1, -0.5, 2), tensor(0.5, 0.25, 0.125, 0.3, 0.2, 0.1)
    given = terms(old, advantages, weights=weights, importance=tensor(1, 0.5, 1, 2, 1, 1), reference=old - 0.2)

    def value(logprobs: Tensor) -> Tensor:
        return policy_loss(logprobs, given, clip_low=0.2, clip_high=0.2, kl=kl)[0]

    assert torch.autograd.gradcheck(value, [(old + steps).requires_grad_()])


def test_a_stale_sample_weighs_as_much_as_its_truncated_importance() -> None:
    given = terms(tensor(-1, -1), tensor(1, -2), importance=tensor(0.5, 2))
    loss, gradient, _ = loss_and_gradient(tensor(-1, -1), given)
    assert loss == pytest.approx(-(0.5 * 1) - (2 * -2))
    assert gradient == pytest.approx([-0.5, 4])


def test_importance_is_the_ratio_of_probabilities_truncated_at_the_limit() -> None:
    sampling, old = tensor(log(0.5), log(0.1), log(0.4), -1000), tensor(log(0.25), log(0.8), log(0.4), -1)
    assert truncated_importance(old, sampling, 2.0).tolist() == pytest.approx([0.5, 2, 1, 2])


def test_the_penalty_is_the_estimated_divergence_from_the_reference_and_never_negative() -> None:
    """d = log 2: 2 - log 2 - 1; d = - log 2: 0.5 + log 2 - 1; both with the weights of the tokens."""
    given = terms(tensor(0, 0), tensor(0, 0), weights=tensor(0.5, 2), reference=tensor(log(2), -log(2)))
    loss, gradient, _ = loss_and_gradient(tensor(0, 0), given, kl=0.1)
    assert loss == pytest.approx(0.1 * (0.5 * (1 - log(2)) + 2 * (log(2) - 0.5)))
    assert gradient == pytest.approx([0.1 * 0.5 * (1 - 2), 0.1 * 2 * (1 - 0.5)])
    assert kl_estimate(tensor(-1), tensor(-1)).tolist() == [0]


def test_the_mean_of_the_estimated_divergence_is_the_divergence() -> None:
    p, q = tensor(0.7, 0.2, 0.1), tensor(0.3, 0.3, 0.4)
    estimated = (p * kl_estimate(p.log(), q.log())).sum()
    assert float(estimated) == pytest.approx(
        sum(a * log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    )


def test_a_penalty_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="logprobs under the reference"):
        policy_loss(tensor(0), terms(tensor(0), tensor(1)), clip_low=0.2, clip_high=0.2, kl=0.1)


def test_a_policy_gradient_step_makes_good_samples_likelier() -> None:
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    loss, _ = policy_loss(logprobs, terms(logprobs.detach(), tensor(1, 0.0, -1)), clip_low=0.2, clip_high=0.2)
    loss.backward()
    assert logits.grad is not None
    good, _, bad = (logits - logits.grad).softmax(-1).tolist()
    assert good > exp(-log(3)) > bad
