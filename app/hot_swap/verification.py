"""Do these logprobs prove that a model server wears an adapter as it was trained? Pure.

A server in bfloat16 cannot say what a trainer in float32 says, so the comparison calibrates itself: by how much
the server's base model differs from the trainer's is noise, and the adapter may differ by three times as much.
"""

from collections.abc import Sequence

import msgspec

from app.errors import AdapterError
from app.records import Probe

TOLERANCE = 1e-3  # of a logprob, between machines that compute in float32
_ROOM = 3.0  # times the noise
_ANOTHER = 1.0  # more noise than fewer bits make


class Figures(msgspec.Struct, frozen=True):
    """What one server said of the tokens of a probe: differences of logprobs, the greatest of any token."""

    error: float  # |served adapter - trained adapter|
    distance: float  # |served adapter - served base|
    noise: float  # |served base - trained base|


def compare(probe: Probe, served: Sequence[float], base: Sequence[float]) -> Figures:
    """`served` and `base` are what the server says of each point, as the adapter and as the base model.

    Raises AdapterError that says which figure is off and what that means.
    """
    points = probe.points
    trained, trained_base = [point.logprob for point in points], [point.base for point in points]
    figures = Figures(_greatest(served, trained), _greatest(served, base), _greatest(base, trained_base))
    _check_told_apart(figures, _greatest(trained, trained_base))
    if figures.noise > _ANOTHER:
        raise AdapterError(
            f"it serves another base model than the one that was trained: logprobs of fixed tokens are off by up "
            f"to {figures.noise:.4f} without the adapter. Compare its --model with SAGE_MODEL"
        )
    bound = max(TOLERANCE, _ROOM * figures.noise)
    if not figures.error <= bound:
        raise AdapterError(
            f"it answers with other weights than were trained: logprobs of fixed tokens are off by up to "
            f"{figures.error:.4f}, and {bound:.4f} is allowed (its base model is off by {figures.noise:.4f}). "
            "It has other weights under this name: restart it, and compare its adapter directory with ours"
        )
    if not _square(served, trained) < _square(served, trained_base):
        raise AdapterError(
            f"it answers more like the base model than like the adapter: logprobs of fixed tokens are off by "
            f"{figures.error:.4f}, those of its base model by {figures.noise:.4f}. Serve with a more exact --dtype"
        )
    return figures


def _check_told_apart(figures: Figures, trained: float) -> None:
    if trained <= TOLERANCE:
        raise AdapterError(
            f"these weights answer as the base does: in training, too, no logprob differs by more than "
            f"{trained:.4f}, so that nothing can be proven. Train for longer, or go on serving the base"
        )
    if not figures.distance > TOLERANCE:
        raise AdapterError(
            f"it answers as the base does: no logprob differs by more than {figures.distance:.4f}, in training "
            f"{trained:.4f}. It loaded the adapter without using it: look into its log"
        )


def _greatest(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def _square(some: Sequence[float], others: Sequence[float]) -> float:
    return sum((one - other) ** 2 for one, other in zip(some, others, strict=True))
