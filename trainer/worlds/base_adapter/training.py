"""The training of an adapter: its demonstrations and samples on disk, its learning curve, and the segments between
two points of it.

A segment runs on one or several processes. Between segments no model is loaded, so an exam has the memory for
itself. A segment that was killed is repeated from its checkpoint.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import cast

import msgspec
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from app.base.files import write_atomically
from app.base.processes import exit_with_parent
from app.base.settings import Settings
from app.engine.memory import MemoryNeed, check_fits, memory_available, trained_needs
from app.engine.tokenizer import ChatTokenizer
from trainer.environment import Split
from trainer.evaluation.metrics import PolicyMetrics
from trainer.learning import distributed
from trainer.learning.adapter import publish, with_lora
from trainer.learning.batch import Sample, pad, plan
from trainer.learning.distributed import LearnerLostError, ProcessGroup, Rank, Rendezvous
from trainer.learning.model import ACTIVATION_BYTES, DtypeName, base_dtype, describe, load_model, sampled_logprobs
from trainer.learning.supervised import SftSettings, SftStep, sft_steps
from trainer.sft.chats import read_records
from trainer.sft.collection import CollectionSettings, ExpertAccess, collect
from trainer.sft.samples import build_samples
from trainer.worlds.recipes import AdapterRecipe, MixPart, divide_scenarios

_AT_ONCE = 4  # chains of a process
_CHUNK = 25  # scenarios of a file: what a kill can cost each process, at most
_STRIDE = 100_000  # between the seeds of two parts of the mix


class DemonstrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """Scenarios of one part of the mix, and where their demonstrations go."""

    path: Path
    part: MixPart
    split: Split
    seed: int
    scenarios: int


def plan_files(recipe: AdapterRecipe, work: Path, split: Split) -> list[DemonstrationFile]:
    """The files of a split: "train", or "validation" for the held-out loss."""
    total = recipe.scenarios if split == "train" else recipe.held_out_scenarios
    counts = divide_scenarios(total, recipe.mix)
    return [
        DemonstrationFile(
            path=work / f"demonstrations-{split}" / f"{part.name}-{number:04}.jsonl",
            part=part,
            split=split,
            seed=(recipe.seed * len(recipe.mix) + place) * _STRIDE + number,
            scenarios=min(_CHUNK, count - number * _CHUNK),
        )
        for place, (part, count) in enumerate(zip(recipe.mix, counts, strict=True))
        for number in range(-(-count // _CHUNK))
    ]


def collect_files(files: list[DemonstrationFile], profile: str, settings: Settings, processes: int) -> None:
    """Collect those files that are missing. Only demonstrations that were executed and judged right are kept."""
    missing = [each for each in files if not each.path.exists()]
    total = sum(each.scenarios for each in files)
    done = total - sum(each.scenarios for each in missing)
    with (
        ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=exit_with_parent, initargs=(os.getpid(),)
        ) as pool,
        tqdm(total=total, initial=done, desc="demonstrations", unit="scenario") as bar,
    ):
        jobs = [pool.submit(_collect, each, profile, settings) for each in missing]
        try:
            for file, job in zip(missing, jobs, strict=True):
                job.result()
                bar.update(file.scenarios)
        finally:  # after a failure the others need not be begun
            pool.shutdown(cancel_futures=True)


def _collect(file: DemonstrationFile, profile: str, settings: Settings) -> None:
    wanted = CollectionSettings(
        expert=file.part.expert,
        environment=file.part.environment,
        split=file.split,
        scenarios=file.scenarios,
        seed=file.seed,
        keep="task",
        profile=profile,
    )
    asyncio.run(collect(wanted, ExpertAccess(at_once=_AT_ONCE), settings, file.path, lambda _: None))


class TrainingSet(msgspec.Struct, frozen=True, kw_only=True):
    """Samples, and for the card what they are."""

    samples: list[Sample]
    demonstrations: dict[str, int]  # by part of the mix
    dropped: dict[str, int]  # by reason


def write_training_set(files: list[DemonstrationFile], tokenizer: ChatTokenizer, path: Path) -> None:
    """Tokenize the demonstrations. Raises InvalidError where none fits the model."""
    counts = Counter[str]()
    for file in files:
        counts[file.part.name] += file.path.read_bytes().count(b"\n")
    written = [each.path for each in files if each.path.stat().st_size]  # else the expert failed in its few tasks
    records = [record for path in written for record in read_records(path)]
    built = build_samples(records, tokenizer)
    whole = TrainingSet(samples=built.samples, demonstrations=dict(counts), dropped=built.dropped)
    write_atomically(msgspec.msgpack.encode(whole), path)


def read_training_set(path: Path) -> TrainingSet:
    return msgspec.msgpack.decode(path.read_bytes(), type=TrainingSet)


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the training: a line of its journal."""

    step: int
    examples: int
    tokens: int
    learned_tokens: int
    cpu_seconds: float  # of all processes
    loss: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The training up to a step. Sums count from the first step, and work that a kill undid only once."""

    step: int
    examples: int
    tokens: int
    learned_tokens: int
    cpu_minutes: float  # of training alone
    loss: float  # mean of the steps since the last point
    held_out_loss: float
    adapter: str  # its content hash
    device: str = ""  # of each process
    exams: dict[str, PolicyMetrics] = {}  # by environment


class StepJournal:
    """A file with a line per step. Steps that are repeated after a kill replace their lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[StepRecord] | None = None

    def add(self, record: StepRecord) -> None:
        if self._records is None:
            self._records = [each for each in read_steps(self._path) if each.step < record.step]
            write_atomically(b"".join(map(_line, self._records)), self._path)
        with self._path.open("ab") as file:
            file.write(_line(record))


def read_steps(path: Path) -> list[StepRecord]:
    """The whole lines: a last one that a kill cut short is left out."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    return [msgspec.json.decode(line, type=StepRecord) for line in whole.splitlines()]


def point_at(
    step: int, records: Sequence[StepRecord], *, since: int, held_out_loss: float, adapter: str, device: str
) -> CurvePoint:
    """The point at a step, with the loss since another."""
    done = [each for each in records if each.step <= step]
    recent = [each.loss for each in done if each.step > since]
    return CurvePoint(
        step=step,
        examples=sum(each.examples for each in done),
        tokens=sum(each.tokens for each in done),
        learned_tokens=sum(each.learned_tokens for each in done),
        cpu_minutes=sum(each.cpu_seconds for each in done) / 60,
        loss=sum(recent) / len(recent),
        held_out_loss=held_out_loss,
        adapter=adapter,
        device=device,
    )


class SftSegment(msgspec.Struct, frozen=True, kw_only=True):
    """Steps `since` (exclusive) to `until` of a training, and the places of its files."""

    model_dir: Path
    start: Path | None  # an adapter to go on from
    base_name: str | None  # of the model on model servers
    samples: Path
    held_out: Path
    work: Path
    settings: SftSettings
    rank: int
    alpha: int
    dtype: DtypeName  # of the frozen base
    device: str
    since: int
    until: int

    @property
    def point(self) -> Path:
        return self.work / f"point-{self.until:06}.json"

    @property
    def adapters(self) -> Path:
        return self.work / "adapters"


def fitting_processes(wanted: int, device: str, gpus: int) -> int:
    """How many processes can train: on CUDA at most one per GPU, on MPS one."""
    match device:
        case "cuda":
            return max(1, min(wanted, gpus))
        case "mps":
            return 1
    return wanted


def train_segment(segment: SftSegment, processes: int) -> CurvePoint:
    """Train up to the segment's last step, unless that was done.

    Raises ModelMemoryError before it begins, where not all processes fit, and LearnerLostError if one fails; its
    own traceback is on standard error.
    """
    if not segment.point.exists():
        check_memory(segment, processes)
        segment.work.mkdir(parents=True, exist_ok=True)
        store, rendezvous = distributed.serve("127.0.0.1", 0, processes, 0)
        team = [_spawn(segment, rendezvous, Rank(index, index, processes)) for index in range(processes)]
        try:
            _await_all(team)
        finally:
            for each in team:
                each.kill()
                each.join()
            del store  # the processes met in it
    return msgspec.json.decode(segment.point.read_bytes(), type=CurvePoint)


def check_memory(segment: SftSegment, processes: int) -> None:
    """Raises ModelMemoryError where not all processes fit. A GPU is checked by the process that uses it."""
    device = torch.device(segment.device)
    if device.type == "cpu":
        each = trained_needs(
            segment.model_dir,
            base_dtype(segment.dtype, device, segment.model_dir).itemsize,
            rank=segment.rank,
            kept_tokens=segment.settings.tokens // processes,
            most_kept=ACTIVATION_BYTES,
        ).host
        need = MemoryNeed(((processes * each.total, f"{processes} x training of {each}"),))
        check_fits(
            segment.model_dir, need, memory_available(), doing="training with ", advice="or take fewer --processes"
        )


def _spawn(segment: SftSegment, rendezvous: Rendezvous, rank: Rank) -> SpawnProcess:
    process = get_context("spawn").Process(target=_run, args=(segment, rendezvous, rank, os.getpid()), daemon=True)
    process.start()
    return process


def _await_all(team: Sequence[SpawnProcess]) -> None:
    running = {each.sentinel: each for each in team}
    while running:
        for sentinel in connection.wait(list(running)):
            ended = running.pop(cast(int, sentinel))
            ended.join()
            if ended.exitcode:
                raise LearnerLostError(
                    f"a process of the training ended with code {ended.exitcode}: see its output above; if memory "
                    "ran out, take fewer processes. The same command resumes from the last checkpoint"
                )


def _run(segment: SftSegment, rendezvous: Rendezvous, rank: Rank, parent: int) -> None:
    exit_with_parent(parent)
    if rendezvous.count == 1:
        return _train(segment, ProcessGroup(torch.device(segment.device)))
    store = distributed.connect(rendezvous.host, rendezvous.port)
    accelerator = distributed.join(store, rendezvous, rank, segment.device)
    _train(segment, ProcessGroup(accelerator))
    accelerator.end_training()


def _train(segment: SftSegment, processes: ProcessGroup) -> None:
    settings, device = segment.settings, processes.device
    base = load_model(segment.model_dir, device, dtype=base_dtype(segment.dtype, device, segment.model_dir))
    policy = with_lora(base, segment.rank, segment.alpha, segment.start, seed=settings.seed)
    model = cast(PreTrainedModel, policy.get_base_model())  # with the LoRA layers in it
    samples = read_training_set(segment.samples).samples
    file = segment.work / "steps.jsonl"
    journal, before = StepJournal(file), time.process_time()
    steps = sft_steps(
        model, samples, settings, segment.work / "sft.checkpoint", until=segment.until, processes=processes
    )
    for step in steps:
        spent, before = time.process_time() - before, time.process_time()
        seconds = sum(each[0] for each in processes.gather([spent]))
        if processes.index == 0:
            journal.add(_record(step, seconds))
    loss = mean_loss(model, read_training_set(segment.held_out).samples, settings.tokens, processes)
    if processes.index == 0:
        adapter = publish(policy, segment.adapters, base=segment.base_name)
        point = point_at(
            segment.until,
            read_steps(file),
            since=segment.since,
            held_out_loss=loss,
            adapter=adapter.hash,
            device=describe(device),
        )
        write_atomically(msgspec.json.encode(point), segment.point)


@torch.no_grad()
def mean_loss(
    model: PreTrainedModel, samples: Sequence[Sample], tokens: int, processes: ProcessGroup | None = None
) -> float:
    """Nats per sampled token of all samples, read at most `tokens` at once. Processes share the work."""
    processes = processes or ProcessGroup(model.device)
    groups = list(plan([len(each.ids) for each in samples], tokens, torch.Generator().manual_seed(0)))
    total, count = 0.0, 0
    for group in groups[processes.index :: processes.count]:
        logprobs = sampled_logprobs(model, pad([samples[row] for row in group], model.device))
        total, count = total - logprobs.sum().item(), count + logprobs.numel()
    sums = processes.gather([total, float(count)])
    return sum(each[0] for each in sums) / sum(each[1] for each in sums)


def _record(step: SftStep, cpu_seconds: float) -> StepRecord:
    return StepRecord(
        step=step.index,
        examples=step.examples,
        tokens=step.read_tokens,
        learned_tokens=step.tokens,
        cpu_seconds=cpu_seconds,
        loss=step.loss,
    )


def _line(record: StepRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"
