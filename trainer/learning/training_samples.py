"""The samples of an update: trajectories with advantages, divided into micro-batches that fit into memory."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from app.errors import InvalidError
from trainer.learning.batch import Sample, sample_of, shared_tokens
from trainer.sage.advantages import AdvantagedRollout
from trainer.sage.loss import token_weight


class TrainingSample(msgspec.Struct, frozen=True):
    """One trajectory with the inputs of its loss."""

    sample: Sample
    logprobs: tuple[float, ...]  # of its sampled tokens, as the engine reported them
    advantage: float
    weight: float  # of each of its sampled tokens
    stale: bool


def training_samples(rollouts: Sequence[AdvantagedRollout]) -> list[TrainingSample]:
    """The rollouts with a learning signal, as samples.

    Groups without a signal do not count in the weights: steps would shrink as the policy improves. Rollouts with a
    flaw are left out. Raises InvalidError if the chat template leaves no others.
    """
    informative = [each for each in rollouts if each.has_signal]
    flaws = [each.rollout.trajectory.flaw for each in informative]
    if flaws and all(flaw == "rewritten" for flaw in flaws):
        raise InvalidError(
            f"the model's chat template rewrote earlier turns in all {len(flaws)} rollouts with a learning signal "
            "(some templates drop earlier thoughts), and no update can learn from those: use a chat template that "
            "keeps earlier turns as they were"
        )
    sound = [each for each, flaw in zip(informative, flaws, strict=True) if flaw is None]
    groups = len({each.rollout.group for each in sound})
    return [_sample(each, groups) for each in sound]


def _sample(advantaged: AdvantagedRollout, groups: int) -> TrainingSample:
    rollout = advantaged.rollout
    logprobs = tuple(value for turn in rollout.trajectory.turns for value in turn.logprobs)
    return TrainingSample(
        sample=sample_of(rollout.trajectory),
        logprobs=logprobs,
        advantage=advantaged.advantage,
        weight=token_weight(groups, advantaged.group_size, len(logprobs)),
        stale=rollout.staleness > 0,
    )


def divide(
    samples: Sequence[TrainingSample], token_budget: int, processes: int = 1, *, share: bool = False
) -> list[list[list[TrainingSample]]]:
    """The micro-batches of each process: every sample once, at most `token_budget` tokens or one sample each.

    Processes get about equally many tokens, and so do the micro-batches of a process, which keeps peak memory low.
    With `share`, samples that begin alike follow each other, and what they share with the last one is not counted.
    """
    if share:
        shares = _contiguous(sorted(samples, key=lambda each: each.sample.ids), processes)
    else:
        ordered = sorted(samples, key=lambda each: len(each.sample.ids))
        shares = [ordered[process::processes] for process in range(processes)]
    return [_micro_batches(each, token_budget, share=share) for each in shares]


def _contiguous(samples: Sequence[TrainingSample], processes: int) -> list[list[TrainingSample]]:
    """Cut into parts of about equally many tokens to encode."""
    sizes = _encoded(samples, share=True)
    shares: list[list[TrainingSample]] = [[] for _ in range(processes)]
    before = 0
    for each, size in zip(samples, sizes, strict=True):
        shares[int((before + size / 2) * processes / sum(sizes))].append(each)
        before += size
    return shares


def _micro_batches(
    samples: Sequence[TrainingSample], token_budget: int, *, share: bool
) -> list[list[TrainingSample]]:
    sizes = _encoded(samples, share=share)
    even = -(-sum(sizes) // max(1, -(-sum(sizes) // token_budget)))
    batches: list[list[TrainingSample]] = []
    room = 0
    for each, encoded in zip(samples, sizes, strict=True):
        size = encoded
        if not batches or size > room:
            batches.append([])
            size = len(each.sample.ids)  # there is none before it to share with
            room = even if size <= even else token_budget
        batches[-1].append(each)
        room -= size
    return batches


def _encoded(samples: Sequence[TrainingSample], *, share: bool) -> list[int]:
    """The tokens of each sample that are encoded after the sample before it."""
    shared = [0, *(shared_tokens(one.sample, other.sample) if share else 0 for one, other in pairwise(samples))]
    return [len(each.sample.ids) - tokens for each, tokens in zip(samples, shared, strict=False)]
