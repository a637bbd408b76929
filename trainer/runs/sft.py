"""A run of kind `sft`: supervised steps on good trajectories, imported or served."""

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import msgspec
import torch
from transformers import PreTrainedModel

from app.records import Json
from app.run_settings import RunSettings
from trainer.learning.activation_memory import checkpoint_activations
from trainer.learning.batch import Sample
from trainer.learning.lora import with_lora
from trainer.learning.model import load_model
from trainer.learning.precision import DtypeName, base_dtype
from trainer.learning.publishing import PublishedAdapter, TrainingOutput, publish
from trainer.learning.supervised import SftSettings, SftStep, sft_steps
from trainer.run_job import Job, RunProgress
from trainer.runs.probe_prompt import probe_prompt
from trainer.runs.sft_examples import SftExamples
from trainer.runs.start_adapter import record_start

_WARMUP = 50  # steps at most, and at most a tenth of all
_CHECKPOINT = "sft.checkpoint"
MEASURED_STEPS = 4  # after which the number of steps can be decided
Report: TypeAlias = Callable[[SftStep], Awaitable[None]]


class SftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines the adapter of a supervised run, and the places of its files."""

    samples: Sequence[Sample]
    settings: RunSettings
    base: Path  # the model directory
    base_name: str | None = None  # of the base model on model servers
    start: Path | None  # the adapter to continue
    directory: Path  # of the run's checkpoint
    adapters: Path  # where the finished adapter is published
    prompt: tuple[int, ...] = ()  # of its probe
    dtype: DtypeName = "auto"  # of the base model's weights


async def train_on_examples(
    job: Job, progress: RunProgress, examples: SftExamples, start: Path | None, device: torch.device
) -> TrainingOutput:
    """Train on the run's examples. Raises what `train_sft` and `progress` raise."""
    spec = SftSpec(
        samples=examples.samples,
        settings=job.settings,
        base=job.deployment.model_dir,
        start=start,
        directory=job.directory,
        base_name=job.deployment.served_model,
        adapters=job.deployment.adapters_dir,
        prompt=probe_prompt(job.deployment),
        dtype=job.deployment.train_dtype,
    )

    async def report(step: SftStep, seconds: float) -> None:
        await progress.step(step.index, job.settings.steps, step_metrics(step, seconds))

    return TrainingOutput(await train_sft(spec, device, timed(job, start, report)), examples.data)


def timed(job: Job, start: Path | None, report: Callable[[SftStep, float], Awaitable[None]]) -> Report:
    """A report for `train_sft` that passes on each step with its seconds, and records where the run started."""
    before = time.perf_counter()

    async def told(step: SftStep) -> None:
        nonlocal before
        record_start(job, start)  # only now: it fits the model
        seconds, before = time.perf_counter() - before, time.perf_counter()
        await report(step, seconds)

    return told


async def train_sft(
    spec: SftSpec, device: torch.device, report: Report, decide_steps: Callable[[], int] | None = None
) -> PublishedAdapter:
    """Train an adapter. A retry ends with the same weights, so the same hash.

    `decide_steps` is asked after the first few steps how many there are, of at most those of the settings; a retry
    is given the same number.

    Raises InvalidError where `start` does not fit the base or a weight is not finite, StorageError if the disk is
    full, and what `report` raises.
    """
    settings = spec.settings
    base = load_model(spec.base, device, dtype=base_dtype(spec.dtype, device, spec.base), liger=settings.liger)
    policy = with_lora(base, settings.lora_rank, settings.lora_alpha, spec.start, seed=settings.seed)
    if settings.gradient_checkpointing:
        checkpoint_activations(base)
    model = cast(PreTrainedModel, policy.get_base_model())  # with the LoRA layers in it
    spec.directory.mkdir(parents=True, exist_ok=True)
    checkpoint = spec.directory / _CHECKPOINT
    if decide_steps is not None:
        for step in sft_steps(model, spec.samples, _sft_settings(settings), checkpoint, until=MEASURED_STEPS):
            await report(step)
        settings = msgspec.structs.replace(settings, steps=decide_steps())
    for step in sft_steps(model, spec.samples, _sft_settings(settings), checkpoint):
        await report(step)
    return publish(policy, spec.adapters, spec.prompt, base=spec.base_name)


def _sft_settings(settings: RunSettings) -> SftSettings:
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


def step_metrics(step: SftStep, seconds: float) -> dict[str, Json]:
    return {
        "loss": step.loss,
        "accuracy": step.accuracy,
        "grad_norm": step.grad_norm,
        "tokens": step.tokens,
        "update_seconds": seconds,
        "update_tokens_per_second": step.tokens / seconds,
    }
