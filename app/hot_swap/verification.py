"""Verifies by logprobs that a model server serves the adapter that was trained. Pure.

A server in bfloat16 cannot match a trainer in float32 exactly, so the comparison calibrates itself: the difference
of the base models is noise, and the adapter may differ by three times as much.
"""

from collections.abc import Sequence

import msgspec

from app.errors import AdapterError
from app.records import Probe

TOLERANCE = 1e-3  # of a logprob, between machines that compute in float32
_NOISE_FACTOR = 3.0
_MAX_NOISE = 1.0  # more than low precision causes


class LogprobDifferences(msgspec.Struct, frozen=True):
    """The largest differences of logprobs over the tokens of a probe, for one server."""

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
        _max_difference(served, trained), _max_difference(served, base), _max_difference(base, trained_base)
    )
    _check_distinguishable(differences, _max_difference(trained, trained_base))
    if differences.noise > _MAX_NOISE:
        raise AdapterError(
            f"it serves another base model than the trained one: logprobs of fixed tokens are off by up "
            f"to {differences.noise:.4f} without the adapter. Compare its --model with SAGE_MODEL"
        )
    bound = max(TOLERANCE, _NOISE_FACTOR * differences.noise)
    if not differences.error <= bound:
        raise AdapterError(
            f"it serves other weights than the trained ones: logprobs of fixed tokens are off by up to "
            f"{differences.error:.4f}, and {bound:.4f} is allowed (its base model is off by "
            f"{differences.noise:.4f}). "
            "It has other weights under this name: restart it, and compare its adapter directory with ours"
        )
    if not _squared_distance(served, trained) < _squared_distance(served, trained_base):
        raise AdapterError(
            f"it is closer to the base model than to the adapter: logprobs of fixed tokens are off by "
            f"{differences.error:.4f}, those of its base model by {differences.noise:.4f}. Serve with a higher "
            "precision --dtype"
        )
    return differences


def _check_distinguishable(differences: LogprobDifferences, trained: float) -> None:
    if trained <= TOLERANCE:
        raise AdapterError(
            f"these weights behave like the base: even in training no logprob differs by more than "
            f"{trained:.4f}, so nothing can be verified. Train for longer, or keep serving the base"
        )
    if not differences.distance > TOLERANCE:
        raise AdapterError(
            f"it behaves like the base: no logprob differs by more than {differences.distance:.4f}, in training "
            f"by {trained:.4f}. It loaded the adapter without using it: check its log"
        )


def _max_difference(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def _squared_distance(some: Sequence[float], others: Sequence[float]) -> float:
    return sum((one - other) ** 2 for one, other in zip(some, others, strict=True))
