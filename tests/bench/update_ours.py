"""One side of `bench_update.py`: steps of this project's update on given samples, in a process of its own.

python -m tests.bench.update_ours samples.json --model DIR --adapter DIR --tokens 3200
"""

import argparse
import json
import resource
import time
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from app.base.run_settings import RunSettings
from trainer.learning.adapter import with_lora
from trainer.learning.learner import Learner
from trainer.learning.model import load_model
from trainer.sage.advantages import AdvantagedRollout

LR = 1e-5


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    advantaged = msgspec.json.decode(options.samples.read_bytes(), type=list[AdvantagedRollout])
    model = with_lora(load_model(options.model, torch.device(options.device)), 16, 32, options.adapter)
    settings = RunSettings(lr=LR, micro_batch_tokens=options.tokens, gradient_checkpointing=options.checkpointing)
    learner = Learner(model, settings)
    if options.gradient is not None:
        save_first_gradient(model, options.gradient)
    before, seconds, computed = _resident(), [], []
    learner.update(advantaged)  # warms up
    for _ in range(options.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        learner.update(advantaged)
        seconds.append(time.perf_counter() - wall)
        computed.append(time.process_time() - cpu)
    print(json.dumps({"seconds": seconds, "cpu": computed, "before": before, "peak": _peak(options.device)}))


def save_first_gradient(model: nn.Module, path: Path) -> None:
    def save(*_: object) -> None:
        if not path.exists():
            save_file({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, path)

    register_optimizer_step_pre_hook(save)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of a micro-batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--gradient", type=Path, help="where the first step's gradient goes")
    return parser.parse_args()


def _peak(device: str) -> float:
    """Megabytes: of the process, or of the GPU."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def _resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
