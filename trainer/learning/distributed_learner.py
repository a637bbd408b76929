"""A learner on several processes of this machine: one per GPU, or per share of the CPU.

The first process does all that a run does. The others only compute: each holds the same model, or a part of it,
hears of each round what the first one gathered, and takes its part of the update.
"""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec
import structlog
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, patch_environment
from peft import PeftModel

from app.errors import AppError, InvalidError
from app.run_settings import RunSettings
from trainer.learning.lora import PublishedAdapter, lora_weights, publish, with_lora
from trainer.learning.model import load_model
from trainer.learning.probe import make_probe
from trainer.learning.update import Learner, UpdateStats
from trainer.parent_death import exit_with_parent
from trainer.sage.advantages import AdvantagedRollout

log = structlog.get_logger(__name__)

_PATIENCE = timedelta(days=7)  # the others wait while the first one rolls out
_LOST = 3  # exit code of a process whose partners are gone
_GRACE_SECONDS = 10.0  # for the first one to fail by itself once another is gone


class LearnerLostError(AppError):
    """A process that took part in the update is gone."""


class LearnerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a learner is made from, so that every process makes the same."""

    model_dir: Path
    settings: RunSettings
    start: Path | None  # the adapter to go on from
    device: str
    shard: bool = False  # each process holds a part of the model instead of all of it (FSDP2)


class _Place(msgspec.Struct, frozen=True):
    """One process among those of an update."""

    index: int
    count: int
    port: int  # where the first one listens

    def join(self, device: str) -> Accelerator:
        """Blocks until all are there. Raises InvalidError for a device that they cannot share."""
        cpu = device == "cpu"
        threads = max(1, torch.get_num_threads() // self.count)
        with patch_environment(
            rank=self.index,
            local_rank=self.index,
            world_size=self.count,
            local_world_size=self.count,
            master_addr="127.0.0.1",
            master_port=self.port,
            omp_num_threads=threads,
        ):
            joined = Accelerator(cpu=cpu, kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)])
        if joined.num_processes != self.count:
            raise InvalidError(f"an update on {device} cannot be spread: set SAGE_TRAIN_PROCESSES=1")
        if cpu:
            torch.set_num_threads(threads)
        return joined


class SharedLearner(Learner):
    """Of the first process: what it is asked to do, all others do, too."""

    def __init__(self, spec: LearnerSpec, joined: Accelerator) -> None:
        policy = _policy(spec, joined.device)
        super().__init__(policy, spec.settings, joined, shard=spec.shard)
        self._spec = spec

    def update(self, advantaged: Sequence[AdvantagedRollout]) -> UpdateStats | None:
        with _nobody_lost():
            _tell("update", list(advantaged))
            return super().update(advantaged)

    def save(self, path: Path) -> None:
        with _nobody_lost():
            _tell("save", path)
            super().save(path)

    def restore(self, path: Path) -> None:
        with _nobody_lost():
            _tell("restore", path)
            super().restore(path)

    def publish(self, root: Path, opening: Sequence[int] = ()) -> PublishedAdapter:
        """Of a model in parts all processes give theirs, and a whole one answers the probe."""
        if not self._processes.sharded:
            return super().publish(root, opening)
        with _nobody_lost():
            _tell("gather", None)
            weights = lora_weights(self.model)
        published = publish(self.model, root, weights=weights)
        if not opening:
            return published
        fresh = _policy(msgspec.structs.replace(self._spec, start=published.path), self.model.device)
        return msgspec.structs.replace(published, probe=make_probe(fresh, opening))


@contextmanager
def open_learner(spec: LearnerSpec, processes: int) -> Iterator[Learner]:
    """Raises ModelError, and InvalidError where `start` does not fit the model."""
    if processes == 1:
        policy = _policy(spec, torch.device(spec.device))
        yield Learner(policy, spec.settings, shard=False)
        return
    port = _free_port()
    others = [_spawn(spec, _Place(index, processes, port)) for index in range(1, processes)]
    with _watched(others):
        joined = _Place(0, processes, port).join(spec.device)
        yield SharedLearner(spec, joined)
        with _nobody_lost():
            _tell("end", None)
        joined.end_training()


def _policy(spec: LearnerSpec, device: torch.device) -> PeftModel:
    settings = spec.settings
    model = load_model(spec.model_dir, device, liger=settings.liger)
    return with_lora(model, settings.lora_rank, settings.lora_alpha, spec.start, seed=settings.seed)


def _spawn(spec: LearnerSpec, place: _Place) -> SpawnProcess:
    """Spawned, because CUDA does not live through a fork."""
    process = get_context("spawn").Process(target=_follow, args=(spec, place, os.getpid()), daemon=True)
    process.start()
    return process


def _follow(spec: LearnerSpec, place: _Place, first: int) -> None:
    """The life of a process that only computes."""
    exit_with_parent(first)
    joined = place.join(spec.device)
    learner = Learner(_policy(spec, joined.device), spec.settings, joined, shard=spec.shard)
    while True:
        match broadcast_object_list([None, None]):
            case "update", advantaged:
                learner.update(advantaged)
            case "save", path:
                learner.save(path)
            case "restore", path:
                learner.restore(path)
            case "gather", _:
                lora_weights(learner.model)
            case _:
                joined.end_training()
                return


def _tell(order: str, about: object) -> None:
    broadcast_object_list([order, about])


@contextmanager
def _nobody_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch has nothing narrower for a connection that broke
        if "Connection" not in str(error) and "peer" not in str(error):
            raise
        raise LearnerLostError(
            "a process of this update ended: see the run's log; if memory ran out, lower micro_batch_tokens, "
            "then retry the run"
        ) from error


@contextmanager
def _watched(others: Sequence[SpawnProcess]) -> Iterator[None]:
    """If one of them ends too early, this process ends, too: it may wait for that one forever."""
    ended = threading.Event()

    def watch() -> None:
        connection.wait([other.sentinel for other in others])
        if not ended.wait(_GRACE_SECONDS):
            log.error("a process of this update ended", codes=[other.exitcode for other in others])
            os._exit(_LOST)

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        for other in others:
            other.kill()  # it keeps nothing
            other.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port: int = holder.getsockname()[1]
        return port
