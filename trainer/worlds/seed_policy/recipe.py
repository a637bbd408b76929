"""Hyperparameters of the seed policy. Imports no torch, so that the command that shows its defaults starts
fast.
"""

import msgspec

MAX_LENGTH = 2048


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and training of the seed policy."""

    seed: int = 0
    hidden: int = 160
    layers: int = 6
    heads: int = 5  # of 32: the smallest head that vLLM serves
    mlp: int = 448
    drills: int = 40_000  # of each kind, to sample from
    drill_steps: int = 300
    steps: int = 6000
    tokens: int = 16_384  # per step
    lr: float = 1e-3
