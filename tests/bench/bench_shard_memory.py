"""Memory of a sharded model: how much of it each process ever holds, while it is loaded and during an update.

    python -m tests.bench.bench_shard_memory [--processes 4] [--layers 24] [--width 768] [--dtype bfloat16]

A Llama with random weights is written to a temporary directory, in several files. Then real processes (gloo, CPU)
build a learner from it and make one update: sharing the weights (SAGE_TRAIN_SHARD=1), then with a copy each.
Peaks are of resident memory above what the process had before (VmHWM), mapped parts of the files included. The
allocator returns freed memory to the system at once (MALLOC_MMAP_THRESHOLD_): what it kept would count as used.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from app.base.run_settings import RunSettings
from tests.support.processes import free_ports
from tests.support.trajectory_samples import advantaged, rollout
from trainer.learning.adapter import attach_lora
from trainer.learning.distributed_learner import LearnerSpec, new_learner
from trainer.learning.learner import Learner
from trainer.learning.model import DtypeName
from trainer.learning.sharded_model import empty_model, shard_units

ROOT = Path(__file__).parents[2]
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
SETTINGS = RunSettings(lr=1e-3, lora_rank=4, micro_batch_tokens=64, gradient_checkpointing=True)


class Account(msgspec.Struct):
    """Megabytes of one process."""

    whole: float  # all parameters of the model
    own: float  # those of them that this process keeps
    largest: float  # the largest unit that is gathered at once: a layer, or the embeddings
    loading: float  # peak while the learner was built, above the memory before
    update: float  # peak during an update, above the memory before the learner was built


def write_model(path: Path, *, layers: int, width: int, vocabulary: int = 8192) -> None:
    """With heads of 64, gates of four times the width and untied embeddings; in files of at most 64 MB."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(path, max_shard_size="64MB")


def accounts(model: Path, processes: int, *, shard: bool, dtype: DtypeName) -> list[Account]:
    """Of each process, by rank."""
    (port,) = free_ports(1)
    shared = {
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    command = [sys.executable, "-m", "tests.bench.bench_shard_memory", "--model", str(model), "--dtype", dtype]
    started = [
        subprocess.Popen(
            [*command, *(["--shard"] if shard else [])],
            cwd=ROOT,
            env=os.environ
            | {name: str(value) for name, value in shared.items()}
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            | ALLOCATOR,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        outputs = [each.communicate(timeout=550)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    return [msgspec.json.decode(output.strip().splitlines()[-1], type=Account) for output in outputs]


def measure(model: Path, *, shard: bool, dtype: DtypeName) -> Account:
    """In this process, one of several."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    spec = LearnerSpec(model_dir=model, settings=SETTINGS, start=None, device="cpu", dtype=dtype, shard=shard)
    attach_lora(empty_model(model, torch.bfloat16, accelerator.device), 4, 8)  # imports the code, holds no weights
    accelerator.wait_for_everyone()
    before = _resident("VmRSS")
    _forget_peak()
    learner = new_learner(Learner, spec, accelerator)
    loading = _resident("VmHWM") - before
    accelerator.wait_for_everyone()
    _forget_peak()
    learner.update([advantaged(rollout(number), (-1.0) ** number, size=4) for number in range(4)])
    update = _resident("VmHWM") - before
    parameters = list(learner.model.parameters())
    units = [each for each in learner.model.modules() if isinstance(each, FSDPModule)] or shard_units(
        learner.model
    )
    largest = max(_megabytes(list(unit.parameters())) for unit in units)
    own = sum(_local(each) for each in parameters) / 2**20
    accelerator.end_training()
    return Account(_megabytes(parameters), own, largest, loading, update)


def _megabytes(parameters: list[nn.Parameter]) -> float:
    return sum(each.numel() * each.element_size() for each in parameters) / 2**20


def _local(parameter: nn.Parameter) -> int:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local.numel() * local.element_size()


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    options = arguments()
    if options.model is not None:
        account = measure(options.model, shard=options.shard, dtype=options.dtype)
        print(json.dumps(msgspec.to_builtins(account)))
        return
    with TemporaryDirectory() as work:
        write_model(Path(work), layers=options.layers, width=options.width)
        print(f"MB per process, {options.processes} processes, {options.layers} layers, {options.dtype}")
        print("| | whole model | own part | largest unit | peak while loading | peak in an update |")
        print("|---|---|---|---|---|---|")
        for shard in (True, False):
            for rank, each in enumerate(accounts(Path(work), options.processes, shard=shard, dtype=options.dtype)):
                name = f"{'shared' if shard else 'a copy each'}, rank {rank}"
                print(
                    f"| {name} | " + " | ".join(f"{value:.0f}" for value in msgspec.structs.astuple(each)) + " |"
                )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)  # of a process among several
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
