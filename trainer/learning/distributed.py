"""One update on several processes: each with a copy of the model, or all sharing its weights (FSDP2).

The first process (rank 0, the run's own) serves a key-value store. Processes of the same host are started by it
and have the next ranks. Those of other hosts (`trainer.learning.follow`, started by torchrun) look for the
store until it is there, and have the ranks after that, in torchrun's order. Lost ones are noticed.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import msgspec
import structlog
import torch
from accelerate import Accelerator
from accelerate.utils import patch_environment
from torch import Tensor, nn
from torch.distributed import DistError, TCPStore, init_process_group  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grad_norm_

from app.base.errors import AppError, InvalidError, first_line

log = structlog.get_logger(__name__)

LOST = 3  # exit code of a process whose partners are gone
GRAD_CLIP = 1.0
_PATIENCE = timedelta(days=7)  # the others wait while the first process rolls out
_POLL_SECONDS = 2.0


class LearnerLostError(AppError):
    """A process that takes part in the update is gone, or never came."""


class Rendezvous(msgspec.Struct, frozen=True):
    """Where the first process listens, and for how many others."""

    host: str
    port: int
    local: int  # processes on the host of the first one, including it
    remote: int = 0  # processes on other hosts

    @property
    def count(self) -> int:
        return self.local + self.remote


class Rank(msgspec.Struct, frozen=True):
    """One process of an update."""

    index: int
    local_index: int  # on its host: which GPU it takes
    local_count: int


def parse_address(text: str) -> tuple[str, int]:
    """
    >>> parse_address("trainer-0:29500")
    ('trainer-0', 29500)

    Raises InvalidError for anything else.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidError(f"SAGE_TRAIN_RENDEZVOUS={text!r}: write host:port, the address of the worker's host")
    return host, int(port)


def serve(host: str, port: int, local: int, remote: int) -> tuple[TCPStore, Rendezvous]:
    """Open the store of the first process; port 0 is any free one. Raises InvalidError if the port is taken."""
    try:
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_PATIENCE)
    except DistError as error:
        raise InvalidError(f"SAGE_TRAIN_RENDEZVOUS: cannot listen on port {port}: {first_line(error)}") from error
    rendezvous = Rendezvous(host, store.port, local, remote)
    store.set("rendezvous", msgspec.json.encode(rendezvous).decode())
    return store, rendezvous


def find(host: str, port: int) -> Rendezvous:
    """Wait until a run opens its store, however long that takes."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=_POLL_SECONDS):
                pass
            store = connect(host, port)
            return msgspec.json.decode(store.get("rendezvous"), type=Rendezvous)
        except (OSError, DistError):
            time.sleep(_POLL_SECONDS)


def connect(host: str, port: int) -> TCPStore:
    return TCPStore(host, port, is_master=False, timeout=_PATIENCE)


def await_remote(store: TCPStore, rendezvous: Rendezvous, seconds: float) -> None:
    """Wait for the processes of other hosts. Raises LearnerLostError if they do not all come in time."""
    ranks = range(rendezvous.local, rendezvous.count)
    try:
        store.wait([_alive(rank) for rank in ranks], timedelta(seconds=seconds))
    except DistError as error:
        missing = [rank for rank in ranks if not store.check([_alive(rank)])]
        raise LearnerLostError(
            f"{len(missing)} of {rendezvous.remote} processes of other hosts did not join within {seconds:.0f} s: "
            f"start them there (torchrun ... -m trainer.learning.follow) or lower SAGE_TRAIN_REMOTE_PROCESSES"
        ) from error


def join(store: TCPStore, rendezvous: Rendezvous, rank: Rank, device: str) -> Accelerator:
    """Block until all processes are there. Raises InvalidError for a device that cannot be shared."""
    cpu = device == "cpu"
    threads = max(1, torch.get_num_threads() // rank.local_count)
    if device == "cuda":
        torch.cuda.set_device(rank.local_index)
    with patch_environment(
        rank=rank.index,
        local_rank=rank.local_index,
        world_size=rendezvous.count,
        local_world_size=rank.local_count,
        master_addr=rendezvous.host,
        master_port=rendezvous.port,
        omp_num_threads=threads,
    ):
        if device in ("cpu", "cuda"):
            init_process_group(
                "gloo" if cpu else "nccl",
                store=store,
                rank=rank.index,
                world_size=rendezvous.count,
                timeout=_PATIENCE,
            )
        accelerator = Accelerator(cpu=cpu)
    if accelerator.num_processes != rendezvous.count:
        raise InvalidError(f"an update on {device} cannot be spread: set SAGE_TRAIN_PROCESSES=1")
    if cpu:
        torch.set_num_threads(threads)
    return accelerator


@contextmanager
def heartbeat(rendezvous: Rendezvous, rank: int) -> Iterator[None]:
    """Report that this process, of another host than the first, is alive. It ends if the first one is gone."""
    store = connect(rendezvous.host, rendezvous.port)
    store.set(_alive(rank), "0")
    ended = threading.Event()

    def beat() -> None:
        try:
            while not ended.wait(_POLL_SECONDS):
                store.add(_beats(rank), 1)
        except (DistError, RuntimeError):
            if not ended.is_set():
                log.error("the first process of this update is gone")
                os._exit(LOST)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def watch_remote(rendezvous: Rendezvous, silence_seconds: float = 60.0) -> Iterator[None]:
    """End this process, the first, if one of another host falls silent: it might wait for that one
    indefinitely.
    """
    ended = threading.Event()
    if rendezvous.remote:
        threading.Thread(
            target=_watch, args=(rendezvous, ended, silence_seconds), name="watch-remote", daemon=True
        ).start()
    try:
        yield
    finally:
        ended.set()


def _watch(rendezvous: Rendezvous, ended: threading.Event, silence_seconds: float) -> None:
    store = connect(rendezvous.host, rendezvous.port)
    ranks = range(rendezvous.local, rendezvous.count)
    beats = dict.fromkeys(ranks, -1)
    heard = dict.fromkeys(ranks, time.monotonic())
    while not ended.wait(_POLL_SECONDS):
        for rank in ranks:
            now = store.add(_beats(rank), 0)
            if now != beats[rank]:
                beats[rank], heard[rank] = now, time.monotonic()
            elif time.monotonic() - heard[rank] > silence_seconds:
                log.error("a process of another host is lost", rank=rank, seconds=silence_seconds)
                os._exit(LOST)


def _alive(rank: int) -> str:
    return f"alive/{rank}"


def _beats(rank: int) -> str:
    return f"beats/{rank}"


class ProcessGroup:
    """The collective operations of an update. Every call must be made by all processes."""

    def __init__(self, of: Accelerator | torch.device, *, shard: bool = False) -> None:
        """Of a device: this process alone. Accelerators of a process share the device of its first one."""
        accelerator = of if isinstance(of, Accelerator) else None
        self._accelerator = accelerator
        self.device = of.device if isinstance(of, Accelerator) else of
        self.count = 1 if accelerator is None else accelerator.num_processes
        self.index = 0 if accelerator is None else accelerator.process_index
        self.sharded = shard and self.count > 1

    def place(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        """Shard the module's weights over the processes, if they are to share them.

        Only the units in use are gathered, one or two at a time; weights in no unit are gathered during a whole
        pass.
        """
        if self.sharded:
            mesh = init_device_mesh(self.device.type, (self.count,))
            for each in units:
                fully_shard(each, mesh=mesh)
            fully_shard(module, mesh=mesh, reshard_after_forward=True)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients: sharded ones are means over processes, others stay local; `add_up` sums both."""
        (loss * self.count if self.sharded else loss).backward()

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes, in one message. A process without any contributes zeros."""
        if self.sharded or self._accelerator is None:
            return
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        total = self._accelerator.reduce(torch.cat([each.flatten() for each in grads]), "sum")
        for parameter, grad in zip(parameters, total.split([each.numel() for each in grads]), strict=True):
            parameter.grad = grad.view_as(parameter)

    def clip(self, parameters: Sequence[nn.Parameter]) -> float:
        """Scale gradients down to a norm of at most `GRAD_CLIP`. Returns the norm before."""
        norm = clip_grad_norm_(parameters, GRAD_CLIP)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every process, by rank."""
        if self._accelerator is None:
            return [list(values)]
        row = torch.tensor([values], dtype=torch.float64, device=self.device)
        gathered: list[list[float]] = self._accelerator.gather(row).tolist()
        return gathered

    def wait(self) -> None:
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()


def gather_full(tensor: Tensor) -> Tensor:
    """A copy of the full tensor on the CPU. For a sharded one, a call that all processes must make."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A full tensor, which every process has, on the device and with the sharding of `other`. No communication."""
    if isinstance(other, DTensor):
        mesh = other.device_mesh
        return distribute_tensor(tensor.to(mesh.device_type), mesh, other.placements, src_data_rank=None)
    return tensor.to(other.device)
