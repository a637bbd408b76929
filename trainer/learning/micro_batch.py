"""One micro-batch of an update: its tensors, and its logprobs under the policies it is compared with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.learning.batch import Batch, pad
from trainer.learning.training_samples import TrainingSample
from trainer.sage.loss import Terms, kl_estimate, truncated_importance


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

    def terms(self, max_weight: float) -> Terms:
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
            importance=truncated_importance(old, self._sampling, max_weight),
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
