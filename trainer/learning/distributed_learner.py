"""A learner on several processes: one per GPU, or per share of the CPU, on one host or on several.

The first process is the run's own. The others only compute: each has a copy of the model, or a part of it,
receives every call that the first one makes, with its arguments, and does its share of the update.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec
import structlog
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from peft import PeftModel
from torch import Tensor
from torch.distributed import DistError

from app.base.errors import InvalidError
from app.base.processes import exit_with_parent
from app.base.run_settings import RunSettings
from app.base.values import Probe
from trainer.learning import distributed
from trainer.learning.adapter import attach_lora, initial_weights, with_lora
from trainer.learning.distributed import LearnerLostError, Rank, Rendezvous, parse_address
from trainer.learning.learner import Learner, UpdateStats
from trainer.learning.model import DtypeName, base_dtype, load_model
from trainer.learning.sharded_model import empty_model, read_shards
from trainer.sage.advantages import AdvantagedRollout

log = structlog.get_logger(__name__)

_GRACE_SECONDS = 10.0  # for the first process to fail by itself once another is gone
_JOIN_SECONDS = 900.0  # for the processes of other hosts to join


class LearnerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a learner is built from, so that every process builds the same one."""

    model_dir: Path
    settings: RunSettings
    start: Path | None  # the adapter to continue from
    device: str
    dtype: DtypeName = "auto"  # of the base model
    shard: bool = False  # each process holds a part of the model instead of all of it (FSDP2)


class Team(msgspec.Struct, frozen=True):
    """How many processes take part, and where those of other hosts find the first one."""

    local: int = 1  # on this host, the first process included
    remote: int = 0  # on other hosts
    rendezvous: str = ""  # host:port of the first process


class LeaderLearner(Learner):
    """The learner of the first process: each call that all processes must make is broadcast to the others."""

    def update(self, rollouts: Sequence[AdvantagedRollout]) -> UpdateStats | None:
        with _announced("update", list(rollouts)):
            return super().update(rollouts)

    def save(self, path: Path) -> None:
        with _announced("save", path):
            super().save(path)

    def load_state(self, state: dict[str, object]) -> None:
        with _announced("load_state", state):
            super().load_state(state)

    def weights_and_probe(self, probe_prompt: Sequence[int] = ()) -> tuple[dict[str, Tensor], Probe | None]:
        if not self._processes.sharded:
            return super().weights_and_probe(probe_prompt)
        with _announced("weights_and_probe", tuple(probe_prompt)):
            return super().weights_and_probe(probe_prompt)


@contextmanager
def open_learner(spec: LearnerSpec, team: Team) -> Iterator[Learner]:
    """The run's learner, on all processes of the team.

    Raises ModelError, InvalidError if `start` does not fit the model, LearnerLostError if processes are missing.
    """
    if team.local + team.remote == 1:
        yield Learner(_whole_policy(spec, torch.device(spec.device)), spec.settings)
        return
    host, port = parse_address(team.rendezvous) if team.remote else ("127.0.0.1", 0)
    store, rendezvous = distributed.serve(host, port, team.local, team.remote)
    others = [_spawn(rendezvous, Rank(index, index, team.local), spec.device) for index in range(1, team.local)]
    with _end_with(others):
        distributed.await_remote(store, rendezvous, _JOIN_SECONDS)
        with distributed.watch_remote(rendezvous):
            accelerator = distributed.join(store, rendezvous, Rank(0, 0, team.local), spec.device)
            with report_lost():
                dtype = base_dtype(spec.dtype, torch.device(spec.device), spec.model_dir)
                chosen: DtypeName = "bfloat16" if dtype is torch.bfloat16 else "float32"
                same = msgspec.structs.replace(spec, dtype=chosen)  # other hosts might choose another
                broadcast_object_list([same, fingerprint(spec.model_dir)])
                learner = new_learner(LeaderLearner, same, accelerator)
            yield learner
            with _announced("end", None):
                pass
            accelerator.end_training()


def new_learner(kind: Callable[..., Learner], spec: LearnerSpec, accelerator: Accelerator) -> Learner:
    """The learner of one of several processes."""
    if not spec.shard:
        return kind(_whole_policy(spec, accelerator.device), spec.settings, accelerator)
    settings, device = spec.settings, accelerator.device
    model = empty_model(spec.model_dir, base_dtype(spec.dtype, device, spec.model_dir), device)
    policy = attach_lora(model, settings.lora_rank, start=spec.start)
    weights = initial_weights(policy, spec.start, settings.seed)
    read = partial(read_shards, path=spec.model_dir, lora=weights, device=device)
    return kind(policy, settings, accelerator, shard=True, read_weights=read)


def run_follower(
    rendezvous: Rendezvous, rank: Rank, device: str, localize: Callable[[LearnerSpec], LearnerSpec]
) -> None:
    """Compute in step with the first process until it ends the run.

    `localize` turns its spec into this host's, where model and adapter may lie elsewhere. Raises InvalidError
    if this host's model differs.
    """
    store = distributed.connect(rendezvous.host, rendezvous.port)
    accelerator = distributed.join(store, rendezvous, rank, device)
    shared, expected = broadcast_object_list([None, None])
    spec = localize(shared)
    if fingerprint(spec.model_dir) != expected:
        raise InvalidError(
            f"{spec.model_dir} is not the model that the run trains: set SAGE_MODEL to a copy of that model"
        )
    learner = new_learner(Learner, spec, accelerator)
    while True:
        match broadcast_object_list([None, None]):
            case "update", rollouts:
                learner.update(rollouts)
            case "save", path:
                learner.save(path)
            case "load_state", state:
                learner.load_state(state)
            case "weights_and_probe", probe_prompt:
                learner.weights_and_probe(probe_prompt)
            case _:
                accelerator.end_training()
                return


def fingerprint(model_dir: Path) -> str:
    """A hash of the configuration and the sizes of the weight files: enough to tell two models apart without
    reading the weights.
    """
    digest = hashlib.sha256((model_dir / "config.json").read_bytes())
    for path in sorted(model_dir.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return digest.hexdigest()


def _whole_policy(spec: LearnerSpec, device: torch.device) -> PeftModel:
    settings = spec.settings
    model = load_model(spec.model_dir, device, dtype=base_dtype(spec.dtype, device, spec.model_dir))
    return with_lora(model, settings.lora_rank, start=spec.start, seed=settings.seed)


def _spawn(rendezvous: Rendezvous, rank: Rank, device: str) -> SpawnProcess:
    """Spawn a follower, because CUDA does not survive a fork."""
    arguments = (rendezvous, rank, device, os.getpid())
    process = get_context("spawn").Process(target=_follow_leader, args=arguments, daemon=True)
    process.start()
    return process


def _follow_leader(rendezvous: Rendezvous, rank: Rank, device: str, parent: int) -> None:
    exit_with_parent(parent)
    run_follower(rendezvous, rank, device, lambda spec: spec)


@contextmanager
def _announced(call: str, argument: object) -> Iterator[None]:
    """A call that all processes make: the others learn of it. Raises as `report_lost`."""
    with report_lost():
        broadcast_object_list([call, argument])
        yield


@contextmanager
def report_lost() -> Iterator[None]:
    """Raise LearnerLostError if a connection to another process of the update breaks."""
    try:
        yield
    except RuntimeError as error:  # torch has nothing narrower for a broken connection
        lost = isinstance(error, DistError) or "Connection" in str(error) or "peer" in str(error)
        if not lost:
            raise
        raise LearnerLostError(
            "a process of this update ended: see the run's log; if memory ran out, lower micro_batch_tokens, "
            "then retry the run"
        ) from error


@contextmanager
def _end_with(others: Sequence[SpawnProcess]) -> Iterator[None]:
    """End this process if one of the others ends too early: it might wait for that one indefinitely."""
    ended = threading.Event()

    def watch() -> None:
        connection.wait([other.sentinel for other in others])
        if not ended.wait(_GRACE_SECONDS):
            log.error("a process of this update ended", codes=[other.exitcode for other in others])
            os._exit(distributed.LOST)

    if others:
        threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        for other in others:
            other.kill()  # it holds nothing that is needed
            other.join()
