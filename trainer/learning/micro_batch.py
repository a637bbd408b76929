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
        self.old: Tensor | None = None  # log p at the start of the update, before its first optimizer step
        self.reference: Tensor | None = None  # log p at the start of the run, of the measured tokens
        self._samples = samples
        self._stale = self._per_token([float(each.stale) for each in samples]) > 0
        self._advantages = self._per_token([each.advantage for each in samples])
        self._weights = self._per_token([0.0 if idle else each.weight for each in samples])
        self._sampling = torch.tensor([value for each in samples for value in each.logprobs], device=device)
        self._measured = torch.zeros_like(self._stale)

    def __len__(self) -> int:
        return len(self._samples)

    def measure(self, limit: int) -> Batch:
        """Choose at most `limit` trajectories, of all lengths, whose KL from the reference is measured."""
        chosen = range(0, len(self._samples), max(1, -(-len(self._samples) // limit)))
        self._measured = self._per_token([float(index in chosen) for index in range(len(self._samples))]) > 0
        return pad([self._samples[index].sample for index in chosen], self.batch.ids.device)

    def terms(self, max_weight: float) -> Terms:
        """The inputs of the loss.

        The old policy of fresh samples is the one that sampled them, with the logprobs that the engine reported.
        That of stale samples is the policy at the start of the update, with importance weights.
        """
        assert self.old is not None, "the first pass sets it"
        importance = truncated_importance(self.old, self._sampling, max_weight)
        return Terms(
            old=torch.where(self._stale, self.old, self._sampling),
            advantages=self._advantages,
            weights=self._weights,
            importance=torch.where(self._stale, importance, torch.ones_like(importance)),
            reference=self.reference,
        )

    def statistics(self) -> list[float]:
        """Sums over tokens: 1, ratio, KL from the engine, -log p, measured tokens, KL from the reference; then the
        highest ratio. Ratios are those of the old policy, whose p it is, to the one that sampled.
        """
        assert self.old is not None, "the first pass sets it"
        assert self.reference is not None, "the reference is scored first"
        ratio = (self.old - self._sampling).exp()
        engine_kl = kl_estimate(self._sampling, self.old)
        reference_kl = kl_estimate(self.old[self._measured], self.reference)
        sums = [ratio.sum(), engine_kl.sum(), -self.old.sum(), reference_kl.sum(), ratio.max()]
        total_ratio, total_engine, surprise, total_reference, highest = torch.stack(sums).tolist()
        return [ratio.numel(), total_ratio, total_engine, surprise, reference_kl.numel(), total_reference, highest]

    def _per_token(self, values: Sequence[float]) -> Tensor:
        """One value per trajectory, repeated for each of its sampled tokens."""
        counts = torch.tensor([len(each.logprobs) for each in self._samples])
        return torch.tensor(values).repeat_interleave(counts).to(self.batch.ids.device)
