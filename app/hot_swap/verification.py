"""Verifies by logprobs that a model server serves the adapter that was trained. Pure.

Trainer and server may compute in different number formats: float32, bfloat16, int8. So the comparison calibrates
itself:

- The difference of the base models is noise, and the adapter may differ by three times as much.
- In bfloat16, trainer and server round the base alike, but not the adapter. So it may also differ by 0.1, which is
  what bfloat16 does to logprobs, and 2 % of what the adapter changes, but not by more than 16 times the noise of
  the base. That is nothing where both compute in float32.

All are root mean squares over the tokens, since the largest of eight differences varies too much.

Measured with six adapters for SmolLM2-135M, trained in float32 or bfloat16 and served in float32, bfloat16 or
int8, with random choices of tokens: none was refused, and the error was 0.8 of the allowed one at the 99th
percentile. The bundled one is off by about three times the allowed error if it is a tenth smaller, or after
another training step of the default learning rate.
"""

import math
from collections.abc import Sequence

import msgspec

from app.base.errors import AdapterError
from app.base.values import Probe

TOLERANCE = 1e-3  # of a logprob, between machines that compute in float32
_NOISE_FACTOR = 3.0
_ROUNDING = 0.1
_DISTANCE_SHARE = 0.02
_MAX_ROUNDING_FACTOR = 16.0
_MAX_NOISE = 1.0  # more than low precision causes


class LogprobDifferences(msgspec.Struct, frozen=True):
    """Differences of logprobs for one server: root mean squares over the tokens of a probe."""

    error: float  # |served adapter - trained adapter|
    distance: float  # |served adapter - served base|
    noise: float  # |served base - trained base|


def verify_logprobs(probe: Probe, served: Sequence[float], base: Sequence[float]) -> LogprobDifferences:
    """`served` and `base` are the server's logprobs of each point, with the adapter and with the base model.

    Raises AdapterError that names the failed check and its likely cause.
    """
    points = probe.points
    trained, trained_base = [point.logprob for point in points], [point.base for point in points]
    differences = LogprobDifferences(
        _mean_difference(served, trained), _mean_difference(served, base), _mean_difference(base, trained_base)
    )
    _check_distinguishable(_max_difference(served, base), _max_difference(trained, trained_base))
    if (noise := _max_difference(base, trained_base)) > _MAX_NOISE:
        raise AdapterError(
            f"it serves another base model than the trained one: logprobs of fixed tokens are off by up "
            f"to {noise:.4f} without the adapter. Compare its --model with SAGE_MODEL"
        )
    bound = allowed_error(differences.noise, _mean_difference(trained, trained_base))
    if not differences.error <= bound:
        raise AdapterError(
            f"it serves other weights than the trained ones: logprobs of fixed tokens are off by "
            f"{differences.error:.4f} (root mean square), and {bound:.4f} is allowed (its base model is off by "
            f"{differences.noise:.4f}). "
            "It has other weights under this name: restart it, and compare its adapter directory with ours"
        )
    if not differences.error < _mean_difference(served, trained_base):
        raise AdapterError(
            f"it is closer to the base model than to the adapter: logprobs of fixed tokens are off by "
            f"{differences.error:.4f}, those of its base model by {differences.noise:.4f}. Serve with a higher "
            "precision --dtype"
        )
    return differences


def allowed_error(noise: float, distance: float) -> float:
    """Of a server whose base is off by `noise`, for an adapter that training moved by `distance`.

    >>> allowed_error(noise=0.0001, distance=5.0), allowed_error(noise=0.03, distance=5.0)  # float32, bfloat16
    (0.0016, 0.2)
    """
    rounding = min(_ROUNDING + _DISTANCE_SHARE * distance, _MAX_ROUNDING_FACTOR * noise)
    return max(TOLERANCE, _NOISE_FACTOR * noise, rounding)


def _check_distinguishable(served: float, trained: float) -> None:
    """Takes the largest differences from the base."""
    if trained <= TOLERANCE:
        raise AdapterError(
            f"these weights behave like the base: even in training no logprob differs by more than "
            f"{trained:.4f}, so nothing can be verified. Train for longer, or keep serving the base"
        )
    if not served > TOLERANCE:
        raise AdapterError(
            f"it behaves like the base: no logprob differs by more than {served:.4f}, in training "
            f"by {trained:.4f}. It loaded the adapter without using it: check its log"
        )


def _max_difference(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def _mean_difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The root mean square."""
    squares = [(one - other) ** 2 for one, other in zip(some, others, strict=True)]
    return math.sqrt(sum(squares) / len(squares))
