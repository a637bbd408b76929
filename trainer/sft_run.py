"""A run of kind `sft`: supervised steps on good trajectories, imported or logged, into an adapter."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import torch
from transformers import PreTrainedModel

from app.run_settings import RunSettings
from trainer.batch import Sample
from trainer.lora import Published, publish, with_lora
from trainer.model import load_model
from trainer.sft import Report, SftSettings, train_sft

_WARMUP = 50  # steps at most, and no more than a tenth of all
_CHECKPOINT = "sft.checkpoint"


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What is learned, by which rules, and where what comes of it is kept."""

    samples: Sequence[Sample]
    settings: RunSettings
    base: Path  # the model directory
    start: Path | None  # the adapter to go on from
    directory: Path  # of the run: a checkpoint to resume from
    adapters: Path  # the finished one is published there


def learn(lesson: Lesson, device: torch.device, report: Report) -> Published:
    """The adapter. Called again after an interruption, it ends with the same weights, so the same hash.

    Raises InvalidError where `start` does not fit the base or a weight is not finite, OSError if the disk is full,
    and whatever `report` raises to stop it.
    """
    settings = lesson.settings
    torch.manual_seed(settings.seed)  # a new adapter begins at random weights
    base = load_model(lesson.base, device)
    policy = with_lora(base, settings.lora_rank, settings.lora_alpha, lesson.start)
    if settings.gradient_checkpointing:
        policy.enable_input_require_grads()
        base.activation_checkpointing_enable()
    model = cast(PreTrainedModel, policy.get_base_model())  # with the LoRA layers in it
    lesson.directory.mkdir(parents=True, exist_ok=True)
    train_sft(model, lesson.samples, rules_of(settings), lesson.directory / _CHECKPOINT, report)
    return publish(policy, lesson.adapters)


def rules_of(settings: RunSettings) -> SftSettings:
    return SftSettings(
        steps=settings.steps,
        lr=settings.lr,
        warmup=max(1, min(_WARMUP, settings.steps // 10)),
        tokens=settings.micro_batch_tokens,
        weight_decay=0.0,  # it would pull the policy back to the base
        grad_clip=settings.grad_clip,
        seed=settings.seed,
        checkpoint_every=25,
    )
