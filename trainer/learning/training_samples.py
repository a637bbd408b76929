"""The samples of an update: trajectories with advantages, divided into micro-batches that fit into memory."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import msgspec

from trainer.learning.batch import Sample, samples_of, shared_tokens
from trainer.sage.advantages import AdvantagedRollout
from trainer.sage.loss import token_weight


class TrainingSample(msgspec.Struct, frozen=True):
    """A sequence of one trajectory with the inputs of its loss."""

    sample: Sample
    logprobs: tuple[float, ...]  # of its sampled tokens, as the engine reported them
    advantage: float
    weight: float  # of each of its sampled tokens
    stale: bool


def training_samples(rollouts: Sequence[AdvantagedRollout]) -> list[TrainingSample]:
    """The rollouts with a learning signal, as samples. All tokens of a rollout weigh alike.

    Groups without a signal do not count in the weights: steps would shrink as the policy improves. Rollouts with a
    flaw are left out.
    """
    sound = [each for each in rollouts if each.has_signal and each.rollout.trajectory.flaw is None]
    groups = len({each.rollout.group for each in sound})
    return [sample for each in sound for sample in _samples(each, groups)]


def _samples(advantaged: AdvantagedRollout, groups: int) -> Iterator[TrainingSample]:
    trajectory = advantaged.rollout.trajectory
    logprobs = iter([value for turn in trajectory.turns for value in turn.logprobs])
    for sample in samples_of(trajectory):
        yield TrainingSample(
            sample=sample,
            logprobs=tuple(islice(logprobs, sum(sample.sampled))),
            advantage=advantaged.advantage,
            weight=token_weight(groups, advantaged.group_size, trajectory.generated_tokens),
            stale=advantaged.rollout.staleness > 0,
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
