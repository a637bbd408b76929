"""Probes: logprobs of fixed tokens under an adapter and its base, by which model servers prove what they serve."""

from collections.abc import Sequence

import torch
from torch import Tensor

from app.records import Probe, ProbePoint
from trainer.learning.batch import Batch, Sample, pad
from trainer.learning.logprob_model import LogprobModel

_PROMPT = 384  # tokens of the prompt at most, its last: every server has room for them
_ANSWER = 24  # greedy tokens of the adapter that follow it
_CANDIDATES = 64  # the last tokens, from which the points that differ most are chosen
_LIKELY = -7.0  # servers of lower precision are least exact for logprobs below this


@torch.no_grad()
def make_probe(policy: LogprobModel, prompt: Sequence[int], count: int = 8) -> Probe:
    """A probe of at most `count` points. An adapter that changes nothing gets as many, but they prove nothing.

    Where processes share the weights, all of them must make the probe together.
    """
    training = policy.training
    policy.eval()
    try:
        ids = _continue(policy, list(prompt)[-_PROMPT:])
        adapted = _logprobs(policy, ids)
        with policy.model.disable_adapter():
            base = _logprobs(policy, ids)
    finally:
        policy.train(training)
    first = len(ids) - len(base)
    points = [
        ProbePoint(first + index, ids[first + index], *pair)
        for index, pair in enumerate(zip(adapted, base, strict=True))
    ]
    chosen = sorted(points, key=_worth, reverse=True)[:count]
    return Probe(tuple(ids), tuple(sorted(chosen, key=lambda point: point.position)))


def _worth(point: ProbePoint) -> tuple[bool, float]:
    return max(point.logprob, point.base) > _LIKELY, abs(point.logprob - point.base)


def _continue(policy: LogprobModel, ids: list[int]) -> list[int]:
    """The tokens and the adapter's greedy continuation of them."""
    for _ in range(_ANSWER):
        placeholder = 0  # in the place of the token to be predicted
        (token,) = policy(_batch(policy, [*ids, placeholder], sampled=1), most_likely=True).tolist()
        ids = [*ids, token]
    return ids


def _logprobs(policy: LogprobModel, ids: list[int]) -> list[float]:
    """The logprobs of the last tokens; the very first token has none."""
    logprobs: Tensor = policy(_batch(policy, ids, sampled=min(_CANDIDATES, len(ids) - 1)))
    values: list[float] = logprobs.tolist()
    return values


def _batch(policy: LogprobModel, ids: Sequence[int], *, sampled: int) -> Batch:
    """One sample whose last tokens count as sampled."""
    marks = (False,) * (len(ids) - sampled) + (True,) * sampled
    return pad([Sample(tuple(ids), marks)], policy.model.device)
