"""A run's learner on two processes, each with a part of the model: `python -m tests.sharded_learner MODEL OUT`."""

import sys
from pathlib import Path

import msgspec
import torch
from torch.distributed.tensor import DTensor

from app.records import Probe
from tests.distributed_process import SETTINGS, round_of
from tests.named_adapters import OPENING
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.publishing import PublishedAdapter
from trainer.learning.update import Learner


class Told(msgspec.Struct):
    """What is said of it in OUT/told.json."""

    parts: bool  # is every weight of the model shared out?
    adapter: str
    probe: Probe | None


def learned(learner: Learner, out: Path) -> PublishedAdapter:
    """Two rounds; an adapter is published after each, the last one with its probe."""
    for number in range(2):
        learner.update(round_of(number))
        published = learner.publish(out, OPENING if number else ())
    return published


def main(model: Path, out: Path) -> None:
    torch.set_num_threads(1)
    spec = LearnerSpec(model_dir=model, settings=SETTINGS, start=None, device="cpu", shard=True)
    with open_learner(spec, Team(local=2)) as learner:
        published = learned(learner, out)
        parts = all(isinstance(each, DTensor) for each in learner.model.parameters())
    (out / "told.json").write_bytes(msgspec.json.encode(Told(parts, published.hash, published.probe)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
