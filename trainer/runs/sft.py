"""A run of kind `sft`: supervised steps on good trajectories, imported or served.

Imported chats are an uploaded dataset, or a file under an allowed prefix.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast
from uuid import UUID

import msgspec
import torch
from transformers import PreTrainedModel

from app.agent.prompts import choose_profile
from app.apis.catalog import with_builtins
from app.apis.listing import ListedApp, listed_apps
from app.base.errors import InvalidError, NotFoundError, SettingError, StorageError, first_line
from app.base.files import write_atomically
from app.base.run_settings import RunSettings
from app.base.values import Json
from app.db.database import Sessions, reading
from app.releases import manifest
from app.releases.adapter_store import open_remote, remote_errors
from app.releases.tools import Catalogs
from app.runs import datasets
from app.runs.datasets import MAX_BYTES, DataRules, DatasetStore, check_location, dataset_id_of, resolve_path
from trainer.experience import BestExperience, HeldOutTasks, RecordTasks, judge_window, read_best, read_held_out
from trainer.learning.adapter import PublishedAdapter, TrainingOutput, publish, with_lora
from trainer.learning.batch import Sample, samples_of_turns
from trainer.learning.model import DtypeName, base_dtype, checkpoint_activations, load_model
from trainer.learning.supervised import SftSettings, SftStep, sft_steps
from trainer.rewards import ADVICE, BaseModel, DropReason
from trainer.run_job import Job, RunProgress
from trainer.runs.start import probe_prompt, record_start
from trainer.sft.chats import asked, prompt_lines, read_records
from trainer.sft.samples import build_samples, hosted_samples

_FILE, _EXAMPLES_FILE, _CHECKPOINT = "sft.data", "sft.examples", "sft.checkpoint"
_WARMUP = 50  # steps at most, and at most a tenth of all
MEASURED_STEPS = 4  # after which the number of steps can be decided


async def fetch_data(job: Job, sessions: Sessions, max_bytes: int = MAX_BYTES) -> Path:
    """The file, on this machine. The rules of this machine apply, whoever queued the run.

    Raises InvalidError for data that may not be read, is missing or is damaged, StorageError if its store does not
    answer.
    """
    data, target = job.settings.data, job.directory / _FILE
    if dataset_id := dataset_id_of(data):
        try:
            async with sessions() as session:
                row = await datasets.get(session, dataset_id, job.project_id)
        except NotFoundError as error:
            gone = f"dataset {dataset_id} was deleted: upload it again, and start another run"
            raise InvalidError(gone) from error
        job.directory.mkdir(parents=True, exist_ok=True)
        store = DatasetStore(job.deployment.datasets_dir, job.deployment.adapter_store)
        await store.fetch(dataset_id, row.digest, target)
        return target
    prefixes = DataRules.of(job.deployment).prefixes
    check_location(data, prefixes, directories=True)
    if data.startswith("/"):
        return resolve_path(data, prefixes)
    job.directory.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(_download, data, target, max_bytes)
    return target


def _download(url: str, target: Path, max_bytes: int) -> None:
    try:
        remote, path = open_remote(url)
    except SettingError as error:
        raise InvalidError(f"data={url!r}: {first_line(error.__cause__ or error)}") from error
    try:
        found = remote.info(path)
        if found["type"] != "file":
            raise InvalidError(f"data={url!r} is no file")
        if found["size"] is None or found["size"] > max_bytes:
            raise InvalidError(f"data={url!r} has more than {max_bytes:,} bytes: split it")
        remote.get_file(path, os.fspath(target))
    except FileNotFoundError as error:
        raise InvalidError(f"data={url!r} does not exist") from error
    except remote_errors() as error:
        raise StorageError(f"data={url!r} cannot be read ({first_line(error)})") from error


class SftExamples(msgspec.Struct, frozen=True):
    """The samples, and for the run's result how many there are and why others were dropped."""

    samples: list[Sample]
    data: dict[str, Json]


async def load_examples(job: Job, sessions: Sessions, base: BaseModel, record: RecordTasks) -> SftExamples:
    """The chats of `data` or, without it, the best served tasks, which are recorded.

    They are kept in the run's directory, so that a retry learns from the same. Raises InvalidError where there are
    none, or where the data does not fit or may not be read, and StorageError where it cannot be.
    """
    path = job.directory / _EXAMPLES_FILE
    if path.exists():
        return msgspec.msgpack.decode(path.read_bytes(), type=SftExamples)
    if job.settings.data:
        async with reading(sessions) as session:
            held_out = await read_held_out(session, job.project_id, job.settings.environment)
        examples = _import_chats(await fetch_data(job, sessions), job.settings.data, base, held_out)
        await record([])
    else:
        await judge_window(sessions, job.project_id, job.settings, job.deployment)
        while True:  # each round again has fewer tasks
            async with reading(sessions) as session:
                best = await read_best(session, job.project_id, job.settings, base)
            if await record([each.task.id for each in best.trajectories]):
                break
        examples = await _examples(job, sessions, base, best)
    write_atomically(msgspec.msgpack.encode(examples), path)
    return examples


async def _examples(job: Job, sessions: Sessions, base: BaseModel, best: BestExperience) -> SftExamples:
    """Raises InvalidError with advice where nothing is left."""
    samples, unfit, catalogs = list[Sample](), 0, Catalogs(sessions)
    known: dict[UUID | None, Sequence[ListedApp]] = {}

    async def apps_of(release_id: UUID | None) -> Sequence[ListedApp]:
        """What tasks of a release are shown of the project's APIs."""
        if release_id not in known:
            async with sessions() as session:
                served = await manifest.begin_serving(session, job.project_id, release_id, None)
            catalog = with_builtins(await catalogs.of(served.documents))
            known[release_id] = await asyncio.to_thread(listed_apps, catalog)
        return known[release_id]

    profile = choose_profile(job.deployment.prompt_profile, base.tokenizer.card)
    for each in best.trajectories:
        if each.flaw != "hosted":
            samples += samples_of_turns(each.turns, failed=False)
            continue
        retold = hosted_samples(each, profile, await apps_of(each.policy.release), base.tokenizer)
        samples, unfit = samples + retold, unfit + (not retold)
    if not samples:
        raise InvalidError(f"nothing to learn from in {unfit} tasks of hosted models: {ADVICE[DropReason.UNFIT]}")
    data = msgspec.to_builtins(best.data)
    if unfit:
        data["trajectories"] -= unfit
        data["dropped"][DropReason.UNFIT.value] = unfit
    return SftExamples(samples, data)


def _import_chats(path: Path, data: str, base: BaseModel, held_out: HeldOutTasks) -> SftExamples:
    """Raises InvalidError that names the data, and the line or conversation that does not fit."""
    records = read_records(path, data)
    kept = [
        each
        for each in records
        if not held_out.holds(*asked(each)) and not any(map(held_out.resembles, prompt_lines(each)))
    ]
    if not kept:
        raise InvalidError(
            f"{data}: candidates are examined on the tasks of all {len(records)} conversations: "
            f"{ADVICE[DropReason.HELD_OUT]}"
        )
    try:
        built = build_samples(kept, base.tokenizer)
    except InvalidError as error:
        raise InvalidError(f"{data}, {error}") from error
    dropped = {DropReason.HELD_OUT.value: len(records) - len(kept)} if len(kept) < len(records) else {}
    counts = {"trajectories": len(built.samples), "tokens": built.tokens, "dropped": dropped | built.dropped}
    return SftExamples(built.samples, {"conversations": len(records), **counts})


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

    @classmethod
    def of(
        cls, job: Job, samples: Sequence[Sample], start: Path | None, prompt: tuple[int, ...] = ()
    ) -> "SftSpec":
        return cls(
            samples=samples,
            settings=job.settings,
            base=job.deployment.model_dir,
            base_name=job.deployment.served_model,
            start=start,
            directory=job.directory,
            adapters=job.deployment.adapters_dir,
            prompt=prompt,
            dtype=job.deployment.train_dtype,
        )


async def train_on_examples(
    job: Job, progress: RunProgress, examples: SftExamples, start: Path | None, device: torch.device
) -> TrainingOutput:
    """Train on the run's examples. Raises what `train_sft` and `progress` raise."""
    spec = SftSpec.of(job, examples.samples, start, probe_prompt(job.deployment))

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
    base = load_model(spec.base, device, dtype=base_dtype(spec.dtype, device, spec.base))
    policy = with_lora(base, settings.lora_rank, start=spec.start, seed=settings.seed)
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
