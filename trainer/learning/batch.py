"""Convert trajectories to tensors: one row per trajectory where turns only append, as with most chat templates.

The same batches feed supervised steps and policy-gradient steps. Those of an update have advantages, and are
divided into micro-batches that fit into memory, each with its logprobs under the policies it is compared with.
No model here.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise, starmap, takewhile
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from app.base.values import Trajectory, Turn
from trainer.sage.advantages import AdvantagedRollout
from trainer.sage.loss import Terms, kl_estimate, token_weight, truncated_importance

_WORTH_SHARING = 16  # tokens
_MAX_WEIGHT = 2.0  # of a stale sample: larger ones are truncated
_SHARE_WORTH_SHARING = 0.2  # of a sample: attention to another's tokens takes a mask, and half as long again


class Sample(msgspec.Struct, frozen=True):
    """The T tokens of a sequence and which of them the policy sampled."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]


class Batch(NamedTuple):
    """B samples, padded on the right to T tokens."""

    shared: tuple[int, ...]  # (B,) tokens not to be encoded again: `shared_tokens` of the last sample and it
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


class MicroBatch:
    """B trajectories with N sampled tokens in all. Tensors (N,) follow the row-major order of `batch.sampled`."""

    def __init__(self, samples: Sequence[TrainingSample], device: torch.device, *, idle: bool = False) -> None:
        self.batch = pad([each.sample for each in samples], device)
        self.idle = idle  # a pass that only keeps other processes from waiting: its weights are 0
        self.current: Tensor | None = None  # log p at the start of the update, before its first optimizer step
        self.reference: Tensor | None = None  # log p at the start of the run, of the referred tokens
        self._samples = samples
        self._stale = self._per_token([float(each.stale) for each in samples]) > 0
        self._advantages = self._per_token([each.advantage for each in samples])
        self._weights = self._per_token([0.0 if idle else each.weight for each in samples])
        self._sampling = torch.tensor([value for each in samples for value in each.logprobs], device=device)
        self._referred = torch.zeros_like(self._stale)
        self.referred = self.batch  # the trajectories of these tokens

    def __len__(self) -> int:
        return len(self._samples)

    def refer(self, limit: int) -> Batch:
        """The trajectories whose logprobs at the start of the run are needed: those that are stale, and of all
        lengths as many as `limit`, whose KL is measured.
        """
        measured = range(0, len(self._samples), max(1, -(-len(self._samples) // limit)))
        chosen = [index for index, each in enumerate(self._samples) if each.stale or index in measured]
        self._referred = self._per_token([float(index in chosen) for index in range(len(self._samples))]) > 0
        self.referred = pad([self._samples[index].sample for index in chosen], self.batch.ids.device)
        return self.referred

    def divergence(self, logprobs: Tensor, *, from_reference: bool) -> list[float]:
        """Sums over the referred tokens, whose `logprobs` these are: 1, and the KL from the reference, or from the
        policy at the start of the update.
        """
        assert self.current is not None, "the first pass sets it"
        assert self.reference is not None, "the reference is scored first"
        old = self.reference if from_reference else self.current[self._referred]
        return [logprobs.numel(), kl_estimate(old, logprobs).sum().item()]

    def terms(self) -> Terms:
        """The inputs of the loss.

        The old policy of fresh samples is the one that sampled them, with the logprobs that the engine reported.
        That of stale samples is the policy at the start of the run, with importance weights.
        """
        assert self.reference is not None, "the reference is scored first"
        old = self._sampling.clone()
        old[self._referred] = torch.where(self._stale[self._referred], self.reference, old[self._referred])
        return Terms(
            old=old,
            advantages=self._advantages,
            weights=self._weights,
            importance=truncated_importance(old, self._sampling, _MAX_WEIGHT),
            reference=self.reference,
        )

    def statistics(self) -> list[float]:
        """Sums over tokens: 1, ratio, KL from the engine, -log p, referred tokens, KL from the reference; then the
        highest ratio. Ratios are those of the policy at the start of the update, whose p it is, to the one that
        sampled.
        """
        assert self.current is not None, "the first pass sets it"
        assert self.reference is not None, "the reference is scored first"
        ratio = (self.current - self._sampling).exp()
        engine_kl = kl_estimate(self._sampling, self.current)
        reference_kl = (self.current[self._referred] - self.reference).square() / 2
        sums = [ratio.sum(), engine_kl.sum(), -self.current.sum(), reference_kl.sum(), ratio.max()]
        total_ratio, total_engine, surprise, total_reference, highest = torch.stack(sums).tolist()
        return [ratio.numel(), total_ratio, total_engine, surprise, reference_kl.numel(), total_reference, highest]

    def _per_token(self, values: Sequence[float]) -> Tensor:
        """One value per trajectory, repeated for each of its sampled tokens."""
        counts = torch.tensor([len(each.logprobs) for each in self._samples])
        return torch.tensor(values).repeat_interleave(counts).to(self.batch.ids.device)
