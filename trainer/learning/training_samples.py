"""The samples of an update: trajectories with advantages, divided into micro-batches that fit into memory."""

from collections.abc import Sequence

import msgspec

from app.errors import InvalidError
from trainer.learning.batch import Sample, sample_of
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
    samples: Sequence[TrainingSample], token_budget: int, processes: int = 1
) -> list[list[list[TrainingSample]]]:
    """The micro-batches of each process: every sample once, at most `token_budget` tokens or one sample each.

    Processes get about equally many tokens, and so do the micro-batches of a process, which keeps peak memory low.
    """
    ordered = sorted(samples, key=lambda each: len(each.sample.ids))
    return [_micro_batches(ordered[process::processes], token_budget) for process in range(processes)]


def _micro_batches(samples: Sequence[TrainingSample], token_budget: int) -> list[list[TrainingSample]]:
    total = sum(len(each.sample.ids) for each in samples)
    even = -(-total // max(1, -(-total // token_budget)))
    batches: list[list[TrainingSample]] = []
    room = 0
    for each in samples:
        size = len(each.sample.ids)
        if not batches or size > room:
            batches.append([])
            room = even if size <= even else token_budget
        batches[-1].append(each)
        room -= size
    return batches
