"""Supervised fine-tuning on good trajectories: the start that reinforcement learning needs.

The loss is over the policy's own tokens; prompts and observations are context.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch.optim import AdamW
from transformers import PreTrainedModel

from trainer.learning.batch import Sample, pad, plan
from trainer.learning.distributed import ProcessGroup
from trainer.learning.model import (
    ACTIVATION_BYTES,
    activation_bytes,
    checkpointed,
    sampled_logprobs,
    save_atomically,
    within_memory,
)


class SftSettings(msgspec.Struct, frozen=True, kw_only=True):
    steps: int
    lr: float = 2e-3  # peak; linear warm-up, then `schedule` to a tenth
    warmup: int = 50  # steps
    schedule: Literal["cosine", "plateau"] = "cosine"  # "plateau" is constant, then linear over `decay`
    decay: float = 0.3  # of all steps, the last ones
    tokens: int = 16_384  # per step, in all processes together, padding included
    weight_decay: float = 0.01
    seed: int = 0
    checkpoint_every: int = 250  # steps


class SftStep(msgspec.Struct, frozen=True):
    """Metrics of one step."""

    index: int  # from 1
    loss: float  # nats per sampled token, before the update
    accuracy: float  # share of sampled tokens whose probability exceeds one half
    grad_norm: float  # before clipping
    tokens: int  # sampled ones
    read_tokens: int  # these and the context between them
    examples: int


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
    model: PreTrainedModel,
    samples: Sequence[Sample],
    settings: SftSettings,
    checkpoint: Path,
    *,
    until: int | None = None,
    processes: ProcessGroup | None = None,
) -> Iterator[SftStep]:
    """Train the parameters that require a gradient, in place: the whole model, or the LoRA layers in it.

    Called again after an interruption, it continues from `checkpoint` to the same weights. `until` ends this call
    after that step, with a checkpoint. All of `processes`, by default this one alone, must call with the same
    arguments; each computes its share of every step, and the first writes the checkpoints.

    Raises ValueError without samples: empty epochs would never end. Raises ModelMemoryError if the device has no
    memory left.
    """
    if not samples:
        raise ValueError("no samples to learn from")
    optimizer = AdamW(_decay_groups(model, settings.weight_decay), lr=settings.lr, betas=(0.9, 0.95), eps=1e-8)
    processes = processes or ProcessGroup(model.device)
    done = _restore(checkpoint, model, optimizer)
    last = min(settings.steps, until or settings.steps)
    model.train()
    with within_memory():
        room = _room(model)
    for index, group in enumerate(_groups(samples, settings), start=1):
        if index > last:
            break
        if index <= done:
            continue
        for each in optimizer.param_groups:
            each["lr"] = settings.lr * _schedule(index, settings)
        yield _step(model, optimizer, [samples[row] for row in group], index, processes, room)
        if index % settings.checkpoint_every == 0 or index == last:
            _save(checkpoint, index, model, optimizer, processes)
    model.eval()


def _step(
    model: PreTrainedModel,
    optimizer: AdamW,
    samples: Sequence[Sample],
    index: int,
    processes: ProcessGroup,
    room: float,
) -> SftStep:
    learned = max(1, sum(sum(sample.sampled[1:]) for sample in samples))
    with within_memory():
        loss, likely = _accumulate(model, samples[processes.index :: processes.count], learned, room)
    trained = [each for each in model.parameters() if each.requires_grad]
    processes.add_up(trained)
    loss, likely = (sum(column) for column in zip(*processes.gather([loss, likely]), strict=True))
    norm = processes.clip(trained)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    read = sum(len(sample.ids) for sample in samples)
    return SftStep(index, loss, likely / learned, norm, learned, read, len(samples))


def _accumulate(
    model: PreTrainedModel, samples: Sequence[Sample], learned: int, room: float
) -> tuple[float, float]:
    """Add the gradient of a process's share. Returns its part of the loss, and its number of likely tokens.

    No pass has more than `room` tokens; a longer sample has its activations computed again.
    """
    total = likely = 0.0
    for some in _passes(samples, room):
        with nullcontext() if len(some[0].ids) <= room else checkpointed(model):
            logprobs = sampled_logprobs(model, pad(some, model.device))
        loss = -logprobs.sum() / learned
        loss.backward()
        total += loss.item()
        likely += float((logprobs.detach() > math.log(0.5)).sum())
    return total, likely


def _room(model: PreTrainedModel) -> float:
    """The tokens of a pass at most, by what it keeps on a CPU."""
    if model.device.type != "cpu":
        return math.inf
    return ACTIVATION_BYTES // activation_bytes(partial(sampled_logprobs, model), model.device)


def _passes(samples: Sequence[Sample], room: float) -> list[list[Sample]]:
    """In order, each of at most `room` tokens after padding, or a single sample."""
    passes: list[list[Sample]] = []
    longest = 0
    for sample in samples:
        longest = max(longest, len(sample.ids))
        if not passes or (len(passes[-1]) + 1) * longest > room:
            passes.append([])
            longest = len(sample.ids)
        passes[-1].append(sample)
    return passes


def epoch_steps(samples: Sequence[Sample], tokens: int, seed: int) -> int:
    """How many steps of `tokens` each read all samples once."""
    lengths = [len(sample.ids) for sample in samples]
    return sum(1 for _ in plan(lengths, tokens, torch.Generator().manual_seed(seed)))


def _groups(samples: Sequence[Sample], settings: SftSettings) -> Iterator[list[int]]:
    """Endless epochs, the same for the same seed, so that a resumed run sees the same order."""
    lengths = [len(sample.ids) for sample in samples]
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        yield from plan(lengths, settings.tokens, generator)


def _schedule(index: int, settings: SftSettings) -> float:
    if index <= settings.warmup:
        return index / settings.warmup
    if settings.schedule == "plateau":
        remaining = (settings.steps - index) / max(1.0, settings.decay * settings.steps)
        return 0.1 + 0.9 * min(1.0, remaining)
    progress = (index - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def _decay_groups(model: PreTrainedModel, decay: float) -> list[dict[str, object]]:
    """Weight decay for matrices only: norms and biases have no reason to shrink."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def _save(checkpoint: Path, index: int, model: PreTrainedModel, optimizer: AdamW, processes: ProcessGroup) -> None:
    if processes.index == 0:
        trained = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
        state = {"step": index, "model": trained, "optimizer": optimizer.state_dict()}  # under LoRA a small part
        save_atomically(state, checkpoint)


def _restore(checkpoint: Path, model: PreTrainedModel, optimizer: AdamW) -> int:
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, map_location=model.device, weights_only=True)
    model.load_state_dict(state["model"], strict=False)  # it has the trained weights only
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
