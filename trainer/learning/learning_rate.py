"""The learning rate of a run that names none: one that suits its model."""

from collections.abc import Mapping

import msgspec

from app.errors import InvalidError
from app.records import Json
from app.run_settings import RunKind, RunSettings

_FIELD = "learning_rate"  # of a model's card
_PRETRAINED = 1e-4  # a step of ten times as much takes a pretrained model out of what it samples
_SUPERVISED = 1e-3  # of LoRA on demonstrations, which cannot run away from what they say


def with_learning_rate(settings: RunSettings, card: Mapping[str, Json]) -> RunSettings:
    """The settings with a rate above 0. Raises InvalidError for a card whose rate is none.

    >>> [with_learning_rate(RunSettings(lr=lr), {"learning_rate": 0.002}).lr for lr in (0, 0.5)]
    [0.002, 0.5]
    >>> with_learning_rate(RunSettings(), {}).lr, with_learning_rate(RunSettings(kind=RunKind.SFT), {}).lr
    (0.0001, 0.001)
    """
    if settings.lr:
        return settings
    if settings.kind is RunKind.SFT:
        return msgspec.structs.replace(settings, lr=_SUPERVISED)
    rate = card.get(_FIELD, _PRETRAINED)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise InvalidError(f"the card of the model has {_FIELD}: {rate!r}, which is no rate: mend it, or set lr")
    return msgspec.structs.replace(settings, lr=float(rate))
