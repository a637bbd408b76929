"""One side of `bench_update.py`: steps of TRL's GRPOTrainer on given samples. Runs where TRL is installed.

    /path/to/trl/bin/python tests/bench/update_trl.py samples.json --model DIR --adapter DIR --rows 8

Imports nothing of this project. The trainer's own loop runs; what it would have generated is put in its place: the
opening as prompt, everything after it as completion, observations masked out by its tool mask.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-not-found]
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

Rows = list[dict[str, Any]]


class Given(GRPOTrainer):  # type: ignore[misc]
    """Trains on what it is given instead of generating."""

    prepared: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, _: object) -> dict[str, torch.Tensor]:
        return dict(self.prepared)


class Clock(TrainerCallback):
    """Seconds of each optimizer step, and the gradient of the first before it is clipped away."""

    def __init__(self, gradient: Path | None) -> None:
        self.seconds: list[float] = []
        self.computed: list[float] = []
        self.before = 0.0
        self._gradient = gradient

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.before = self.before or _resident()
        self._started = time.perf_counter(), time.process_time()

    def on_pre_optimizer_step(self, *_: object, **given: Any) -> None:
        if self._gradient is not None and not self.seconds:
            named = given["model"].named_parameters()
            save_file({name: each.grad for name, each in named if each.grad is not None}, self._gradient)

    def on_step_end(self, *_: object, **__: object) -> None:
        wall, cpu = self._started
        self.seconds.append(time.perf_counter() - wall)
        self.computed.append(time.process_time() - cpu)


def prepare(rows: Rows) -> dict[str, torch.Tensor]:
    """As `_generate_and_score_completions` leaves it: prompts padded on the left, completions on the right."""
    sampled = sum(sum(row["sampled"]) for row in rows)
    return {
        "prompt_ids": _pad([row["prompt"] for row in rows], left=True),
        "prompt_mask": _pad([[1] * len(row["prompt"]) for row in rows], left=True),
        "completion_ids": _pad([row["completion"] for row in rows]),
        "completion_mask": _pad([[1] * len(row["completion"]) for row in rows]),
        "tool_mask": _pad([row["sampled"] for row in rows]),
        "old_per_token_logps": _pad([row["logprobs"] for row in rows]),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": torch.tensor(sampled),
    }


def _pad(lists: list[list[Any]], *, left: bool = False) -> torch.Tensor:
    width = max(map(len, lists))
    if left:
        return torch.tensor([[0] * (width - len(each)) + each for each in lists])
    return torch.tensor([each + [0] * (width - len(each)) for each in lists])


def config(options: argparse.Namespace, rows: int) -> Any:
    return GRPOConfig(
        output_dir="/nonexistent",
        per_device_train_batch_size=options.rows,
        gradient_accumulation_steps=rows // options.rows,
        num_generations=options.rows,
        max_steps=options.steps + 1,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        loss_type="grpo",
        beta=0.0,
        gradient_checkpointing=options.checkpointing,
        bf16=False,
        use_cpu=options.device == "cpu",
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    rows: Rows = json.loads(options.samples.read_text())
    base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    clock = Clock(options.gradient)
    trainer = Given(
        model=PeftModel.from_pretrained(base, str(options.adapter), is_trainable=True),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config(options, len(rows)),
        train_dataset=Dataset.from_dict({"prompt": ["none"] * len(rows)}),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        callbacks=[clock],
    )
    trainer.prepared = {name: each.to(options.device) for name, each in prepare(rows).items()}
    trainer.runs.train()
    timed = {"seconds": clock.seconds[1:], "cpu": clock.computed[1:]}  # the first one warms up
    print(json.dumps({**timed, "before": clock.before, "peak": _peak(options.device)}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8, help="sequences of a micro-batch")
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
