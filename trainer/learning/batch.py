"""Convert trajectories to tensors: one row per trajectory where turns only append, as with most chat templates.

The same batches feed supervised steps and policy-gradient steps. No model here.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, starmap, takewhile
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from app.records import Trajectory, Turn

_WORTH_SHARING = 16  # tokens
_SHARE_WORTH_SHARING = 0.2  # of a sample: attention to another's tokens takes a mask, and half as long again


class Sample(msgspec.Struct, frozen=True):
    """The T tokens of a sequence and which of them the policy sampled."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]


class Batch(NamedTuple):
    """B samples, padded on the right to T tokens."""

    shared: tuple[
        int, ...
    ]  # (B,) tokens that a sample need not encode again, as `shared_tokens` of it and the last
    ids: Tensor  # (B, T) int64
    present: Tensor  # (B, T) bool, False on padding
    sampled: Tensor  # (B, T) bool, True where the policy sampled the token; never True in column 0


def samples_of(trajectory: Trajectory) -> list[Sample]:
    """The tokens of a trajectory, as `samples_of_turns`."""
    return samples_of_turns(trajectory.turns)


def samples_of_turns(turns: Sequence[Turn], *, failed: bool = True) -> list[Sample]:
    """The tokens of consecutive turns, in the order the engine saw them, each sampled one once.

    A turn before which the chat template rewrote earlier ones, as some drop thoughts, begins another sample. With
    `failed=False`, turns whose code failed count as context: whoever imitates the rest does not learn to fail.
    """
    sequences: list[tuple[list[int], list[bool]]] = []
    for turn in turns:
        if not sequences or not turn.extends:
            sequences.append(([], []))
        ids, sampled = sequences[-1]
        ids += [*turn.context_ids, *turn.sampled_ids]
        sampled += [False] * len(turn.context_ids) + [failed or not turn.failed] * len(turn.sampled_ids)
    return [Sample(tuple(ids), tuple(sampled)) for ids, sampled in sequences if any(sampled)]


def pad(samples: Sequence[Sample], device: torch.device | str = "cpu") -> Batch:
    """Right-padded tensors, with T rounded up to a multiple of 32 so that few shapes occur."""
    length = _padded(max(len(sample.ids) for sample in samples))
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    present = torch.zeros(len(samples), length, dtype=torch.bool)
    sampled = torch.zeros(len(samples), length, dtype=torch.bool)
    for row, sample in enumerate(samples):
        size = len(sample.ids)
        ids[row, :size] = torch.tensor(sample.ids)
        present[row, :size] = True
        sampled[row, :size] = torch.tensor(sample.sampled)
    sampled[:, 0] = False
    shared = (0, *starmap(shared_tokens, pairwise(samples)))
    return Batch(shared, ids.to(device), present.to(device), sampled.to(device))


def shared_tokens(before: Sample, sample: Sample) -> int:
    """How many tokens of its context `sample` begins with that `before` begins with, too; 0 if they are few.

    Its last token before the first sampled one is not counted: its hidden state predicts that one.

    >>> prompt = tuple(range(40))
    >>> shared_tokens(Sample((*prompt, 1, 2), (False,) * 42), Sample((*prompt, 3, 4), (False,) * 40 + (True,) * 2))
    39
    """
    end = next((place for place, sampled in enumerate(sample.sampled[1:]) if sampled), 0)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before.ids, sample.ids[:end], strict=False))
    shared = sum(1 for _ in same)
    return shared if shared >= max(_WORTH_SHARING, _SHARE_WORTH_SHARING * len(sample.ids)) else 0


def plan(lengths: Sequence[int], token_budget: int, generator: torch.Generator) -> Iterator[list[int]]:
    """One epoch of batches: every index once, grouped by similar length to save padding, in random order.

    A group holds at most `token_budget` tokens after padding, or a single sample.
    """
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    by_length = sorted(shuffled, key=lambda index: _padded(lengths[index]))  # stable: random among equals
    groups: list[list[int]] = []
    for index in by_length:
        if not groups or (len(groups[-1]) + 1) * _padded(lengths[index]) > token_budget:
            groups.append([])
        groups[-1].append(index)
    for group in torch.randperm(len(groups), generator=generator).tolist():
        yield groups[group]


def _padded(length: int) -> int:
    return -(-length // 32) * 32
