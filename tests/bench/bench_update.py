"""What an update costs beside TRL's GRPOTrainer: tokens per second and memory, on the same samples.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install trl peft
    python -m tests.bench.bench_update --trl-python /tmp/trl/bin/python [--pairs 6] [--rows 8] [--threads 1 2]

The samples are one step of rollouts of the seed policy: whole multi-turn trajectories with the engine's logprobs.
Of them both sides get those whose advantage is not zero. Both start from one LoRA adapter (rank 16, all linear
layers, float32), take the same loss (token mean per trajectory, ratio to the engine's logprobs, clip 0.2, no
penalty) and make one AdamW step of them. TRL pads the prompts of a batch on the left and the rest on the right,
and masks observations with its tool mask, as it does with rollouts of its own; its micro-batch is `--rows`
sequences, ours the same number of tokens, padding included. Gradient checkpointing is on for both or for none.
Every run is a fresh process, ours and theirs in turns. tokens/s: tokens that are not padding, by the wall and by
seconds of CPU. Peak: the process's high-water mark. The cosine is that of the two first gradients.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file

from app.agent.prompts import Compact
from app.agent.rollout import Agent
from app.base.run_settings import RunSettings
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.search import scenario as by_scenario
from tests.support.trajectory_samples import sample_of
from trainer.engines.embedded import subprocess_engine
from trainer.learning.adapter import publish, with_lora
from trainer.learning.model import load_model
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import GroupCollector, draw_chains
from trainer.sage.advantages import AdvantagedRollout, compute_advantages
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.rollouts import LIMITS

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
Row = dict[str, Any]


async def roll_out(model: Path, pairs: int) -> list[AdvantagedRollout]:
    """What one step of rollouts taught."""
    environment, settings = OfficeEnvironment(), RunSettings(pairs=pairs)
    async with subprocess_engine(model, "cpu") as engine, ForkedSandbox() as sandbox:
        agent = Agent(engine, ChatTokenizer.load(model), Compact(), sandbox, LIMITS, temperature=1.0)
        collector = GroupCollector(
            EpisodeRunner(agent, environment), settings, lambda: InMemoryLibrary(retrieval=by_scenario)
        )
        rollouts, _ = await collector.collect(draw_chains(environment, "train", settings, 1), seed=1)
    return [
        each for each in compute_advantages([one for each in rollouts for one in each.scored]) if each.has_signal
    ]


def row(advantaged: AdvantagedRollout) -> Row:
    """A trajectory in TRL's terms."""
    turns = advantaged.rollout.trajectory.turns
    opening = len(turns[0].context_ids)
    sample = sample_of(advantaged.rollout.trajectory)
    logged = iter([value for turn in turns for value in turn.logprobs])
    return {
        "prompt": sample.ids[:opening],
        "completion": sample.ids[opening:],
        "sampled": [int(each) for each in sample.sampled[opening:]],
        "logprobs": [next(logged) if each else 0.0 for each in sample.sampled[opening:]],
        "advantage": advantaged.advantage,
    }


class Bench:
    """The two sides, each run of them in a process of its own."""

    def __init__(self, work: Path, options: argparse.Namespace, advantaged: list[AdvantagedRollout]) -> None:
        self._work, self._options = work, options
        rows = [row(each) for each in advantaged]
        self.tokens = sum(len(each["prompt"]) + len(each["completion"]) for each in rows)
        self.width = max(len(each["prompt"]) for each in rows) + max(len(each["completion"]) for each in rows)
        (work / "ours.json").write_bytes(msgspec.json.encode(advantaged))
        (work / "trl.json").write_text(json.dumps(rows))
        base = load_model(options.model, torch.device("cpu"))
        self._adapter = publish(_scattered(with_lora(base, 16, 32)), work).path

    def ours(self, threads: int, *more: str) -> Row:
        budget = str(self._options.rows * self.width)
        command = [sys.executable, "-m", "tests.bench.update_ours", str(self._work / "ours.json")]
        return self._run([*command, "--tokens", budget, *more], threads)

    def trl(self, threads: int, *more: str) -> Row:
        script = str(Path(__file__).with_name("update_trl.py"))
        command = [self._options.trl_python, script, str(self._work / "trl.json")]
        return self._run([*command, "--rows", str(self._options.rows), *more], threads)

    def cosine(self) -> float:
        """Of the two first gradients. 1: they point the same way."""
        paths = [self._work / "ours.safetensors", self._work / "trl.safetensors"]
        for side, path in zip((self.ours, self.trl), paths, strict=True):
            side(1, "--steps", "0", "--gradient", str(path))
        one, other = (load_file(path) for path in paths)
        a, b = (torch.cat([each[name].flatten().double() for name in sorted(one)]) for each in (one, other))
        return float(a @ b / (a.norm() * b.norm()))

    def _run(self, command: list[str], threads: int) -> Row:
        options = self._options
        common = ["--model", str(options.model), "--adapter", str(self._adapter), "--threads", str(threads)]
        common += ["--steps", str(options.steps)] if "--steps" not in command else []
        common += ["--checkpointing"] if options.checkpointing else []
        done = subprocess.run(
            [*command, *common, "--device", options.device], check=True, capture_output=True, text=True
        )
        found: Row = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def _scattered(model: Any) -> Any:
    """B away from its zeros, so that A has a gradient, too."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.02, generator=generator)
    return model


def main() -> None:
    options = arguments()
    advantaged = asyncio.run(roll_out(options.model, options.pairs))
    advantaged = advantaged[: len(advantaged) // options.rows * options.rows]  # TRL takes whole micro-batches only
    with TemporaryDirectory() as work:
        bench = Bench(Path(work), options, advantaged)
        print(f"{len(advantaged)} trajectories, {bench.tokens} tokens, {bench.width} wide where padded")
        print(f"cosine of the gradients: {bench.cosine():.6f}")
        print("| threads | | tokens/s | of CPU | peak MB | MB before the update |\n|---|---|---|---|---|---|")
        for threads in options.threads:
            runs = [(bench.ours(threads), bench.trl(threads)) for _ in range(options.repeats)]
            report(bench.tokens, threads, [ours for ours, _ in runs], [trl for _, trl in runs])


def report(tokens: int, threads: int, ours: list[Row], trl: list[Row]) -> None:
    for name, runs in (("ours", ours), ("TRL", trl)):
        wall, cpu = (tokens / median(value for run in runs for value in run[key]) for key in ("seconds", "cpu"))
        peak, before = (median(run[key] for run in runs) for key in ("peak", "before"))
        print(f"| {threads} | {name} | {wall:.0f} | {cpu:.0f} | {peak:.0f} | {before:.0f} |")
    pairs = list(zip(ours, trl, strict=True))
    speeds = [median(theirs["seconds"]) / median(own["seconds"]) for own, theirs in pairs]
    memory = [own["peak"] / theirs["peak"] for own, theirs in pairs]
    print(f"| {threads} | ours / TRL | {_span(speeds)} | | {_span(memory)} | |")


def _span(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", required=True)
    parser.add_argument("--model", type=Path, default=SEED_POLICY)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpointing", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
