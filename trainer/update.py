"""The optimizer steps of SAGE: whole trajectories in, better LoRA weights out, on one device or on many."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from app.errors import InvalidError
from app.run_settings import RunKind, RunSettings
from trainer.advantages import Advised
from trainer.batch import Batch
from trainer.items import divide, items_of
from trainer.loss import divergence, policy_loss
from trainer.model import sampled_logprobs, save_atomically
from trainer.part import Part
from trainer.processes import Processes

_WATCHED = 8  # trajectories of a step whose distance from the start is measured where no penalty needs it of all


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one update did. Before the first optimizer step unless said otherwise."""

    loss: float  # of the last optimizer step
    grad_norm: float  # of the last, before clipping
    clip_fraction: float  # of the last: share of tokens that the clip kept from learning
    ratio_mean: float  # p / p of the engine that sampled
    ratio_max: float
    kl_to_engine: float  # estimated divergence from what the engine reported: almost 0 where nothing is stale
    kl_to_start: float  # estimated divergence from where the run began
    tokens: int  # sampled ones that were learned from
    context_tokens: int  # that were read to learn from them
    samples: int
    seconds: float


class Scorer(nn.Module):
    """The policy as one module with one forward pass, so that wrappers for many devices hook on to it."""

    def __init__(self, model: PeftModel, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature

    def forward(self, batch: Batch) -> Tensor:
        """log p of each sampled token, (N,), in row-major order."""
        base = cast(PreTrainedModel, self.model.get_base_model())  # with the LoRA layers in it
        return sampled_logprobs(base, batch, self.temperature)


class Learner:
    """A policy, its optimizer and the rules of its updates."""

    def __init__(self, model: PeftModel, settings: RunSettings, accelerator: Accelerator | None = None) -> None:
        self.settings = settings
        self.model = model
        self.steps = 0
        if settings.gradient_checkpointing:
            _checkpoint_activations(model)
        warm = settings.kind is RunKind.ROLLOUT
        scorer = Scorer(model, settings.temperature if warm else 1.0).train(settings.gradient_checkpointing)
        self._processes = Processes(accelerator or Accelerator(cpu=model.device.type == "cpu"))
        self._scorer, self._optimizer = self._processes.place(scorer, self._new_optimizer)
        self._trained = [each for each in self._scorer.parameters() if each.requires_grad]
        self._start = [each.detach().clone() for each in self._trained]

    def _new_optimizer(self, trained: list[nn.Parameter]) -> AdamW:
        return AdamW(trained, lr=self.settings.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=self._processes.whole)

    def update(self, advised: Sequence[Advised]) -> StepFigures | None:
        """`settings.epochs` optimizer steps on what one round of rollouts taught. None if it taught nothing.

        Every process is given the same rollouts. Raises InvalidError where a gradient is not finite: the weights
        are then as they were before that step.
        """
        began = time.perf_counter()
        items = items_of(advised)
        if not items:
            return None
        parts = self._parts(items)
        self._refer(parts)
        for _ in range(self.settings.epochs):
            loss, clipped, norm = self._step(parts)
        sums, highest = self._processes.total([part.figures() for part in parts if not part.idle])
        tokens = int(sums.tokens)
        return StepFigures(
            loss=loss,
            grad_norm=norm,
            clip_fraction=clipped / tokens,
            ratio_mean=sums.ratio / tokens,
            ratio_max=highest,
            kl_to_engine=sums.from_engine / tokens,
            kl_to_start=sums.from_start / max(1.0, sums.watched),
            tokens=tokens,
            context_tokens=sum(len(item.sample.ids) for item in items) - tokens,
            samples=len(items),
            seconds=time.perf_counter() - began,
        )
