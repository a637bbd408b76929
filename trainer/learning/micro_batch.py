"""One micro-batch of an update: its tensors, and what the first pass over it found."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.learning.batch import Batch, pad
from trainer.learning.training_samples import TrainingSample
from trainer.sage.loss import Terms, kl_estimate, truncated_importance


class MicroBatch:
    """B trajectories with N sampled tokens in all. Tensors (N,) follow the row-major order of `batch.sampled`."""

    def __init__(self, items: Sequence[TrainingSample], device: torch.device, *, idle: bool = False) -> None:
        self.batch = pad([item.sample for item in items], device)
        self.idle = idle  # passed through only because other processes wait for it: nothing is learned from it
        self.start: Tensor | None = None  # log p before the first optimizer step
        self.reference: Tensor | None = None  # log p under the start of the run, of the watched tokens
        self._items = items
        self._stale = self._spread([float(item.stale) for item in items]) > 0
        self._advantages = self._spread([item.advantage for item in items])
        self._weights = self._spread([0.0 if idle else item.weight for item in items])
        self._logged = torch.tensor([each for item in items for each in item.logprobs], device=device)
        self._watched = torch.zeros_like(self._stale)

    def __len__(self) -> int:
        return len(self._items)

    def watch(self, most: int) -> Batch:
        """At most so many of the trajectories, of all lengths, to be measured against the start of the run."""
        chosen = range(0, len(self._items), max(1, -(-len(self._items) // most)))
        self._watched = self._spread([float(index in chosen) for index in range(len(self._items))]) > 0
        return pad([self._items[index].sample for index in chosen], self.batch.ids.device)

    def terms(self, max_weight: float) -> Terms:
        """What the loss needs. A fresh sample is compared with what the engine reported. A stale one is compared
        with the policy as the update began, and weighted for the one that sampled it."""
        assert self.start is not None, "a pass comes first"
        importance = truncated_importance(self._logged, self.start, max_weight)
        return Terms(
            old=torch.where(self._stale, self.start, self._logged),
            advantages=self._advantages,
            weights=self._weights,
            importance=torch.where(self._stale, importance, torch.ones_like(importance)),
            reference=self.reference,
        )

    def figures(self) -> list[float]:
        """Sums over tokens: 1, ratio, divergence from the engine, watched, divergence from the start; then the
        highest ratio. Ratios are taken to the policy that sampled."""
        assert self.start is not None, "a pass comes first"
        assert self.reference is not None, "the start is asked first"
        ratio = (self.start - self._logged).exp()
        from_engine = kl_estimate(self._logged, self.start)
        from_start = kl_estimate(self.start[self._watched], self.reference)
        sums = [ratio.sum(), from_engine.sum(), from_start.sum(), ratio.max()]
        of_ratio, of_engine, of_start, highest = torch.stack(sums).tolist()
        return [ratio.numel(), of_ratio, of_engine, from_start.numel(), of_start, highest]

    def _spread(self, values: Sequence[float]) -> Tensor:
        """One value per trajectory, repeated for each of its sampled tokens."""
        counts = torch.tensor([len(item.logprobs) for item in self._items])
        return torch.tensor(values).repeat_interleave(counts).to(self.batch.ids.device)
