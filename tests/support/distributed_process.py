"""A learner in one of several processes: `python -m tests.support.distributed_process MODEL OUT [--shards]`.

Its rank is in the environment, as `accelerate launch` and `torchrun` set it.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator

from app.base.run_settings import RunSettings
from tests.support.trajectory_samples import advantaged, rollout
from trainer.learning.adapter import publish, with_lora
from trainer.learning.learner import Learner
from trainer.learning.model import load_model
from trainer.sage.advantages import AdvantagedRollout

SETTINGS = RunSettings(lr=1e-3, lora_rank=4, micro_batch_tokens=64, kl=0.05)


def round_of(number: int) -> list[AdvantagedRollout]:
    """An odd number of rollouts, so that processes cannot share them evenly."""
    return [
        advantaged(rollout(10 * number + index, turns=1 + index % 3), (-1) ** index / (1 + index), size=4)
        for index in range(7)
    ]


def new_learner(
    model: Path, settings: RunSettings = SETTINGS, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Learner:
    base = load_model(model, torch.device(device), dtype=dtype)
    return Learner(with_lora(base, settings.lora_rank, seed=settings.seed), settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shards", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    base = load_model(options.model, torch.device("cpu"))
    model = with_lora(base, SETTINGS.lora_rank)
    learner = Learner(model, SETTINGS, accelerator, shard=options.shards)
    for number in range(3):
        stats = learner.update(round_of(number))
    rank = accelerator.process_index
    publish(learner.model, options.out / f"adapters-{rank}")
    learner.save(options.out / "it.checkpoint")
    assert stats is not None
    values = (stats.loss, stats.grad_norm, stats.clip_fraction, stats.ratio_max, stats.tokens)
    (options.out / f"stats-{rank}.txt").write_text(" ".join(map(str, values)))
    accelerator.end_training()


if __name__ == "__main__":
    main()
