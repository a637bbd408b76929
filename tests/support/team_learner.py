"""The learner of a run on several processes: `python -m tests.support.team_learner MODEL OUT [--shard] ...`."""

import argparse
from pathlib import Path

import msgspec
import torch
from torch.distributed.tensor import DTensor

from app.base.values import Probe
from tests.support.distributed_process import SETTINGS, round_of
from tests.support.named_adapters import OPENING
from trainer.learning.adapter import PublishedAdapter
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.learner import Learner, UpdateStats


class Outcome(msgspec.Struct):
    """The content of OUT/outcome.json."""

    sharded: bool  # whether every weight of the model is
    adapter: str
    probe: Probe | None
    stats: UpdateStats | None  # of the last update


def train(learner: Learner, out: Path) -> tuple[PublishedAdapter, UpdateStats | None]:
    """Two rounds. An adapter is published after each, the last one with its probe."""
    for number in range(2):
        stats = learner.update(round_of(number))
        published = learner.publish(out, OPENING if number else ())
    return published, stats


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--local", type=int, default=2)
    parser.add_argument("--remote", type=int, default=0)
    parser.add_argument("--rendezvous", default="")
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--start", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    spec = LearnerSpec(
        model_dir=given.model,
        settings=SETTINGS,
        start=given.start,
        device="cpu",
        dtype=given.dtype,
        shard=given.shard,
    )
    with open_learner(spec, Team(local=given.local, remote=given.remote, rendezvous=given.rendezvous)) as learner:
        published, stats = train(learner, given.out)
        sharded = all(isinstance(each, DTensor) for each in learner.model.parameters())
    outcome = Outcome(sharded, published.hash, published.probe, stats)
    (given.out / "outcome.json").write_bytes(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
