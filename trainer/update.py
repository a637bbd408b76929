"""The optimizer steps of SAGE: whole trajectories in, better LoRA weights out, on one device or on many."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from app.run_settings import RunSettings
from trainer.advantages import Advised
from trainer.batch import Batch, Sample, pad, plan, sample_of
from trainer.loss import Figures, Terms, policy_loss, truncated
from trainer.model import sampled_logprobs, save_atomically


class Item(msgspec.Struct, frozen=True):
    """One trajectory as the loss needs it."""

    sample: Sample
    logprobs: tuple[float, ...]  # of its sampled tokens, as the engine reported them
    advantage: float
    weight: float  # of each of its sampled tokens
    stale: bool


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one update did."""

    loss: float
    grad_norm: float  # before clipping
    clip_fraction: float
    ratio_mean: float
    ratio_max: float
    kl_to_engine: float  # mean of logged minus recomputed logprob over fresh tokens: should be almost 0
    tokens: int  # sampled ones that were learned from
    samples: int


class Scorer(nn.Module):
    """The policy as one module with one forward pass, so that wrappers for many devices hook on to it."""

    def __init__(self, model: PeftModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """log p of each sampled token, (N,), in row-major order."""
        return sampled_logprobs(cast(PreTrainedModel, self.model.get_base_model()), batch)  # LoRA layers in it


class Learner:
    """A policy, its optimizer and the rules of its updates."""

    def __init__(self, model: PeftModel, settings: RunSettings, accelerator: Accelerator | None = None) -> None:
        self.settings = settings
        self.model = model
        self._accelerator = accelerator or Accelerator(cpu=model.device.type == "cpu")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = AdamW(trained, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._scorer, self._optimizer = self._accelerator.prepare(Scorer(model), optimizer)
        self.steps = 0

    def update(self, advised: Sequence[Advised]) -> StepFigures | None:
        """`settings.epochs` optimizer steps on what one round of rollouts taught. None if it taught nothing."""
        items = items_of(advised)
        if not items:
            return None
        self._scorer.train()
        figures = [self._step(items) for _ in range(self.settings.epochs)]
        self._scorer.eval()
        return figures[-1]

    def _step(self, items: Sequence[Item]) -> StepFigures:
        groups = self._groups(items)
        total = loss = torch.zeros(())
        seen: list[Figures] = []
        for group in groups:
            loss, figures = self._loss([items[index] for index in group])
            self._accelerator.backward(loss)
            total = total + loss.detach()
            seen.append(figures)
        norm = self._accelerator.clip_grad_norm_(self._scorer.parameters(), self.settings.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        tokens = sum(each.tokens for each in seen)
        return StepFigures(
            loss=float(total),
            grad_norm=float(norm),
            clip_fraction=float(sum(each.clipped for each in seen)) / tokens,
            ratio_mean=float(sum(each.ratio_sum for each in seen)) / tokens,
            ratio_max=max(float(each.ratio_max) for each in seen),
            kl_to_engine=0.0,
            tokens=tokens,
            samples=len(items),
        )

    def _loss(self, items: Sequence[Item]) -> tuple[Tensor, Figures]:
        batch = pad([item.sample for item in items], self._accelerator.device)
        logprobs: Tensor = self._scorer(batch)
        settings = self.settings
        return policy_loss(
            logprobs,
            self._terms(items, logprobs.detach()),
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            kl=settings.kl,
        )

    def _terms(self, items: Sequence[Item], now: Tensor) -> Terms:
        def spread(values: Sequence[float]) -> Tensor:
            rows = [torch.full((len(item.logprobs),), value) for item, value in zip(items, values, strict=True)]
            return torch.cat(rows).to(now.device)

        logged = torch.tensor([each for item in items for each in item.logprobs], device=now.device)
        stale = spread([float(item.stale) for item in items]) > 0
        return Terms(
            old=torch.where(stale, now, logged),
            advantages=spread([item.advantage for item in items]),
            weights=spread([item.weight for item in items]),
            importance=torch.where(stale, truncated(logged, now, self.settings.max_weight), torch.ones_like(now)),
        )

    def _groups(self, items: Sequence[Item]) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.steps)
        lengths = [len(item.sample.ids) for item in items]
        return list(plan(lengths, self.settings.micro_batch_tokens, generator))

    def save(self, path: Path) -> None:
        save_atomically(self.state(), path)

    def state(self) -> dict[str, Any]:
        lora = {name: value for name, value in self.model.state_dict().items() if "lora_" in name}
        return {"steps": self.steps, "lora": lora, "optimizer": self._optimizer.state_dict()}

    def restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self._accelerator.device, weights_only=True)
        self.model.load_state_dict(state["lora"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


def items_of(advised: Sequence[Advised]) -> list[Item]:
    """What teaches something, with the weight of a token: token mean per task, mean over groups and their G."""
    taught = [each for each in advised if each.teaches]
    groups = len({each.rewarded.group for each in taught})
    items = []
    for each in taught:
        trajectory = each.rewarded.trajectory
        sample = sample_of(trajectory)
        logprobs = tuple(value for turn in trajectory.turns for value in turn.logprobs)
        weight = 1 / (groups * each.group_size * len(logprobs))
        items.append(Item(sample, logprobs, each.advantage, weight, each.rewarded.staleness > 0))
    return items
