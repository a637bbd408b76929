"""A run of kind `sft`: supervised steps on good trajectories, imported or logged, into an adapter."""

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec
import torch
from transformers import PreTrainedModel

from app.db.database import Sessions
from app.errors import InvalidError
from app.records import Json
from app.run_settings import RunSettings
from trainer.atomic_write import write_atomically
from trainer.experience.filters import BaseModel
from trainer.experience.read import read_best
from trainer.job import Job, RunProgress
from trainer.learning.batch import Sample, sample_of
from trainer.learning.lora import with_lora
from trainer.learning.model import load_model
from trainer.learning.precision import DtypeName, base_dtype
from trainer.learning.publishing import PublishedAdapter, TrainingOutput, publish
from trainer.learning.supervised import SftSettings, SftStep, sft_steps
from trainer.runs.probe_prompt import opening_of
from trainer.sft_data.chat_records import read_records
from trainer.sft_data.chat_samples import taught

_WARMUP = 50  # steps at most, and no more than a tenth of all
_CHECKPOINT = "sft.checkpoint"
_MATERIAL = "sft.material"
Report = Callable[[SftStep], Awaitable[None]]


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What is learned, by which rules, and where what comes of it is kept."""

    samples: Sequence[Sample]
    settings: RunSettings
    base: Path  # the model directory
    start: Path | None  # the adapter to go on from
    directory: Path  # of the run: a checkpoint to resume from
    adapters: Path  # the finished one is published there
    opening: tuple[int, ...] = ()  # the prompt of its probe
    dtype: DtypeName = "auto"  # of the base model's weights


class Material(msgspec.Struct, frozen=True):
    """What there is to learn from, and what of it was kept, for the run's result."""

    samples: list[Sample]
    data: dict[str, Json]


async def run_sft(
    job: Job, progress: RunProgress, sessions: Sessions, base: BaseModel, start: Path | None, device: torch.device
) -> TrainingOutput:
    """Carry the run out, but for the gate.

    Raises InvalidError where there is nothing to learn from, and what `progress` and `learn` raise.
    """
    material = await gather(job, sessions, base)
    lesson = Lesson(
        samples=material.samples,
        settings=job.settings,
        base=job.deployment.model_dir,
        start=start,
        directory=job.directory,
        adapters=job.deployment.adapters_dir,
        opening=opening_of(job.deployment),
        dtype=job.deployment.train_dtype,
    )
    before = time.perf_counter()

    async def report(step: SftStep) -> None:
        nonlocal before
        seconds, before = time.perf_counter() - before, time.perf_counter()
        await progress.step(step.index, job.settings.steps, metrics_of(step, seconds))

    return TrainingOutput(await learn(lesson, device, report), material.data)


async def gather(job: Job, sessions: Sessions, base: BaseModel) -> Material:
    """The chats of the file that the settings name; without one, the best of what was served.

    An earlier attempt at the run has written down what it gathered: what came in since would change the steps.
    """
    former = _former(job.directory)
    if former is not None:
        return former
    if job.settings.data:
        material = imported(job.settings.data, base)
    else:
        async with sessions() as session:
            best = await read_best(session, job.project_id, job.settings, base)
        material = Material([sample_of(each) for each in best.trajectories], msgspec.to_builtins(best.data))
    write_atomically(msgspec.msgpack.encode(material), job.directory / _MATERIAL)
    return material


def imported(data: str, base: BaseModel) -> Material:
    """Raises InvalidError that names the file, and the line or the conversation in it that does not fit."""
    path = Path(data).absolute()
    records = read_records(path)
    try:
        found = taught(records, base.tokenizer)
    except InvalidError as error:
        raise InvalidError(f"{path}, {error}") from error
    counts = {"trajectories": len(found.samples), "tokens": found.tokens, "dropped": found.dropped}
    return Material(found.samples, {"conversations": len(records), **counts})


def _former(directory: Path) -> Material | None:
    path = directory / _MATERIAL
    return msgspec.msgpack.decode(path.read_bytes(), type=Material) if path.exists() else None


async def learn(lesson: Lesson, device: torch.device, report: Report) -> PublishedAdapter:
    """The adapter. Called again after an interruption, it ends with the same weights, so the same hash.

    Raises InvalidError where `start` does not fit the base or a weight is not finite, StorageError if the disk is
    full, and whatever `report` raises to stop it.
    """
    settings = lesson.settings
    base = load_model(lesson.base, device, dtype=base_dtype(lesson.dtype, device), liger=settings.liger)
    policy = with_lora(base, settings.lora_rank, settings.lora_alpha, lesson.start, seed=settings.seed)
    if settings.gradient_checkpointing:
        base.activation_checkpointing_enable()
    model = cast(PreTrainedModel, policy.get_base_model())  # with the LoRA layers in it
    lesson.directory.mkdir(parents=True, exist_ok=True)
    for step in sft_steps(model, lesson.samples, rules_of(settings), lesson.directory / _CHECKPOINT):
        await report(step)
    return publish(policy, lesson.adapters, lesson.opening)


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


def metrics_of(step: SftStep, seconds: float) -> dict[str, Json]:
    return {
        "loss": step.loss,
        "accuracy": step.accuracy,
        "grad_norm": step.grad_norm,
        "tokens": step.tokens,
        "update_seconds": seconds,
        "update_tokens_per_second": step.tokens / seconds,
    }
