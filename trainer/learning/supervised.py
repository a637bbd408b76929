"""Supervised fine-tuning on good trajectories: the start that reinforcement learning needs.

The loss is over the policy's own tokens; prompts and observations are context.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from transformers import PreTrainedModel

from trainer.learning.batch import Sample, pad, plan
from trainer.learning.model import sampled_logprobs, save_atomically


class SftSettings(msgspec.Struct, frozen=True, kw_only=True):
    steps: int
    lr: float = 2e-3  # peak; linear warm-up, then cosine to a tenth
    warmup: int = 50  # steps
    tokens: int = 16_384  # per step, padding included
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 250  # steps


class SftStep(msgspec.Struct, frozen=True):
    """Metrics of one step."""

    index: int  # from 1
    loss: float  # nats per sampled token, before the update
    accuracy: float  # share of sampled tokens whose probability exceeds one half
    grad_norm: float  # before clipping
    tokens: int  # sampled ones


OnStep = Callable[[SftStep], None]


def train_sft(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    settings: SftSettings,
    checkpoint: Path,
    on_step: OnStep,
) -> None:
    """Run all steps of `sft_steps`."""
    for step in sft_steps(model, samples, settings, checkpoint):
        on_step(step)


def sft_steps(
    model: PreTrainedModel, samples: Sequence[Sample], settings: SftSettings, checkpoint: Path
) -> Iterator[SftStep]:
    """Train the parameters that require a gradient, in place: the whole model, or the LoRA layers in it.

    Called again after an interruption, it continues from `checkpoint` to the same weights.
    Raises ValueError without samples: empty epochs would never end.
    """
    if not samples:
        raise ValueError("no samples to learn from")
    optimizer = AdamW(_decay_groups(model, settings.weight_decay), lr=settings.lr, betas=(0.9, 0.95), eps=1e-8)
    done = _restore(checkpoint, model, optimizer)
    model.train()
    for index, group in enumerate(_groups(samples, settings), start=1):
        if index > settings.steps:
            break
        if index <= done:
            continue
        for each in optimizer.param_groups:
            each["lr"] = settings.lr * _schedule(index, settings)
        yield _step(model, optimizer, [samples[row] for row in group], settings, index)
        if index % settings.checkpoint_every == 0 or index == settings.steps:
            save_atomically(
                {"step": index, "model": _trained_weights(model), "optimizer": optimizer.state_dict()}, checkpoint
            )
    model.eval()


def _step(
    model: PreTrainedModel, optimizer: AdamW, samples: list[Sample], settings: SftSettings, index: int
) -> SftStep:
    batch = pad(samples, model.device)
    logprobs = sampled_logprobs(model, batch)
    loss = -logprobs.mean()
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), settings.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    likely = (logprobs.detach() > math.log(0.5)).float().mean()
    return SftStep(index, loss.item(), likely.item(), norm.item(), logprobs.numel())


def _groups(samples: Sequence[Sample], settings: SftSettings) -> Iterator[list[int]]:
    """Endless epochs, the same for the same seed, so that a resumed run sees the same order."""
    lengths = [len(sample.ids) for sample in samples]
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        yield from plan(lengths, settings.tokens, generator)


def _schedule(index: int, settings: SftSettings) -> float:
    if index <= settings.warmup:
        return index / settings.warmup
    progress = (index - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def _decay_groups(model: PreTrainedModel, decay: float) -> list[dict[str, object]]:
    """Weight decay for matrices only: norms and biases have no reason to shrink."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def _trained_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights that are trained: under LoRA a small part of all."""
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


def _restore(checkpoint: Path, model: PreTrainedModel, optimizer: AdamW) -> int:
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, map_location=model.device, weights_only=True)
    model.load_state_dict(state["model"], strict=False)  # it has the trained weights only
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
