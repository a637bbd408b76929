"""The processes of another host that take part in updates: `torchrun ... -m trainer.learning.follow`.

On every host but the worker's own, with as many processes as it has GPUs:

    torchrun --nnodes 1 --nproc-per-node 8 -m trainer.learning.follow

With several such hosts, each of them, where OTHER is one of them:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint OTHER:29400 -m
    trainer.learning.follow

They read the same settings as the worker: SAGE_TRAIN_RENDEZVOUS (host:port of the worker's host, on a private
network), SAGE_MODEL, SAGE_DATA_DIR and SAGE_ADAPTER_STORE. They follow run after run until they are stopped.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context

import msgspec
import structlog

from app.base.errors import AppError, InvalidError
from app.base.processes import exit_with_parent
from app.base.settings import Settings
from app.releases.adapter_store import AdapterStore
from trainer.learning.distributed import LOST, LearnerLostError, Rank, Rendezvous, find, heartbeat, parse_address
from trainer.learning.distributed_learner import LearnerSpec, report_lost, run_follower
from trainer.learning.model import pick_device

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="torchrun ... -m trainer.learning.follow")
    parser.add_argument("--once", action="store_true", help="follow one run, then exit")
    once = parser.parse_args(arguments).once
    host, port = parse_address(Settings.from_env().train_rendezvous)
    while True:
        rendezvous = find(host, port)
        code = _follow_in_child(rendezvous, _rank(rendezvous))
        if once:
            sys.exit(code)


def _rank(rendezvous: Rendezvous) -> Rank:
    """This process's rank among all, after those of the worker's host. Raises InvalidError if the counts
    differ.
    """
    index, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if count != rendezvous.remote:
        raise InvalidError(
            f"torchrun started {count} processes, but the worker waits for {rendezvous.remote}: "
            f"set SAGE_TRAIN_REMOTE_PROCESSES={count} there"
        )
    return Rank(rendezvous.local + index, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))


def _follow_in_child(rendezvous: Rendezvous, rank: Rank) -> int:
    """The exit code of a process per run: CUDA state that a run leaves behind, or breaks, must not reach the
    next.
    """
    child = get_context("spawn").Process(target=_follow, args=(rendezvous, rank, os.getpid()))
    child.start()
    child.join()
    return child.exitcode or 0


def _follow(rendezvous: Rendezvous, rank: Rank, parent: int) -> None:
    exit_with_parent(parent)
    settings = Settings.from_env()
    device = pick_device(settings.engine_device).type
    try:
        with heartbeat(rendezvous, rank.index), report_lost():
            run_follower(rendezvous, rank, device, partial(_localize, settings=settings, device=device))
    except LearnerLostError:  # whichever of the two notices first
        log.error("the first process of this update is gone")
        sys.exit(LOST)
    except AppError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _localize(spec: LearnerSpec, settings: Settings, device: str) -> LearnerSpec:
    """The run's spec with this host's model, and its start adapter fetched from the store."""
    store = AdapterStore(settings.adapters_dir, settings.adapter_store)
    start = None if spec.start is None else asyncio.run(store.fetch(spec.start.name))
    return msgspec.structs.replace(spec, model_dir=settings.model_dir, start=start, device=device)


if __name__ == "__main__":
    main(sys.argv[1:])
