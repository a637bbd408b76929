"""Shorten steps that take a policy too far from the one that sampled what they learn from.

A learning rate that suits one model ruins another one: an optimizer that divides gradients by their size moves all
weights by about as much, whatever the gradients say. The divergence of the policies tells how far a step went.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_TRIES = 8
_TOLERANCE = 1.1


@torch.no_grad()
def shorten(
    weights: Mapping[str, Tensor], center: Mapping[str, Tensor], limit: float, divergence: Callable[[], float]
) -> float:
    """Move `weights` towards `center` until their `divergence()` from it is at most about `limit`. Returns it.

    Near the center it grows with the square of the distance. Where no try is near enough, the weights are those of
    the center.
    """
    for _ in range(_TRIES):
        found = divergence()
        if found <= limit * _TOLERANCE:
            return found
        part = (limit / found) ** 0.5
        for name, each in weights.items():
            each.copy_(center[name] + (each - center[name]) * part)
    for name, each in weights.items():
        each.copy_(center[name])
    return 0.0
