"""What one step of SAGE costs: collect, judge, update, publish, load. By default as large as the paper's.

    python -m tests.bench.bench_step [--model DIR] [--adapter DIR] [--environment NAME] [--pairs 24] [--group 8]
        [--lr 1e-4] [--processes 1] [--no-update]

With SAGE_ROLLOUT_ENGINE_URLS those model servers sample, else as many engines of its own as processes update. From
the second step on the rollouts use the adapter that the first one made, as in training. Prints for each step its
seconds, and those that each part computed, on any core: engines, sandboxes and all but one of the processes
that update are processes of their own, the rest is this one's. If no group has a signal, as with a policy that
solves nothing, rewards 1 and 0 by turns stand for it, so that the update is measured all the same.
"""

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import torch

from app.agent.rollout import RolloutLimits
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.base.values import Policy
from trainer.environment import open_environment
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.learner import Learner
from trainer.rollouts.episode import EpisodeRunner, RolloutStack, open_stack
from trainer.rollouts.groups import GroupCollector, draw_chains
from trainer.sage.advantages import ScoredRollout, compute_advantages

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"


@dataclass
class Costs:
    """Wall and processor seconds of what was done since `mark` was last called."""

    figures: dict[str, float] = field(default_factory=dict)
    _wall: float = field(default_factory=time.perf_counter)
    _own: float = field(default_factory=time.process_time)
    _engine: float = field(default_factory=lambda: engine_seconds())
    _ended: float = field(default_factory=lambda: ended_seconds())

    def mark(self, part: str) -> None:
        now = (time.perf_counter(), time.process_time(), engine_seconds(), ended_seconds())
        before = (self._wall, self._own, self._engine, self._ended)
        for name, after, was in zip(("wall", "own_cpu", "engine_cpu", "ended_cpu"), now, before, strict=True):
            self.figures[f"{part}_{name}"] = round(after - was, 2)
        self._wall, self._own, self._engine, self._ended = now


def engine_seconds() -> float:
    """Processor time of the engines."""
    words = [(process / "stat").read_text().rpartition(")")[2].split() for process in _engines()]
    return sum(int(each[11]) + int(each[12]) for each in words) / os.sysconf("SC_CLK_TCK")


def engine_peak_mb() -> float:
    lines = [line for process in _engines() for line in (process / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _engines() -> list[Path]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    found = [Path("/proc") / child for child in children]
    return [each for each in found if b"engine_child" in (each / "cmdline").read_bytes()]


def ended_seconds() -> float:
    """Processor time of the processes that have ended: sandboxes."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


async def run(options: argparse.Namespace, adapters: Path) -> None:
    settings = RunSettings(pairs=options.pairs, group=options.group, lr=options.lr)
    spec = LearnerSpec(model_dir=options.model, settings=settings, start=options.adapter, device="cpu")
    given = {"model": str(options.model), "train_processes": options.processes}
    deployment = msgspec.structs.replace(Settings.from_env(), **given)
    limits = RolloutLimits(turns=options.turns, task_tokens=options.task_tokens)
    environment = open_environment(options.environment)
    async with open_stack(environment, settings.retrieval, deployment, limits) as stack:
        with open_learner(spec, Team(local=options.processes)) as learner:  # spawns processes
            await take_steps(options, stack, learner, adapters)


async def take_steps(options: argparse.Namespace, stack: RolloutStack, learner: Learner, adapters: Path) -> None:
    settings = learner.settings
    policy = await load(stack, learner, adapters)
    for step in range(options.steps):
        costs = Costs()
        runner = EpisodeRunner(replace(stack.agent, temperature=1.0), stack.environment, policy)
        collector = GroupCollector(runner, settings, stack.new_library, at_once=options.at_once)
        chains, _ = await collector.collect(draw_chains(stack.environment, "train", settings, step), step)
        costs.mark("rollouts")
        scored = [one for each in chains for one in each.scored]
        stats = None
        if not options.no_update:
            stats = await asyncio.to_thread(learner.update, compute_advantages(with_signal(scored)))
        costs.mark("update")
        policy = await load(stack, learner, adapters)
        costs.mark("load")
        report(step, scored, costs.figures)
        print(json.dumps({"update": msgspec.to_builtins(stats)}), flush=True)


async def load(stack: RolloutStack, learner: Learner, adapters: Path) -> Policy:
    published = learner.publish(adapters)
    await stack.engine.load_adapter(published.hash, published.path)
    return Policy(published.hash)


def with_signal(scored: Sequence[ScoredRollout]) -> list[ScoredRollout]:
    if any(each.has_signal for each in compute_advantages(list(scored))):
        return list(scored)
    return [msgspec.structs.replace(each, reward=float(at % 2)) for at, each in enumerate(scored)]


def report(step: int, scored: Sequence[ScoredRollout], costs: dict[str, float]) -> None:
    every = [turn for each in scored for turn in each.trajectory.turns]
    figures = {
        "step": step + 1,
        "rollouts": len(scored),
        "solved": sum(each.score == 1 for each in scored),
        "turns": len(every),
        "tokens": sum(len(turn.context_ids) + len(turn.sampled_ids) for turn in every),
        "sampled": sum(len(turn.sampled_ids) for turn in every),
        "prompts": sum(len(turns[0].context_ids) for each in scored if (turns := each.trajectory.turns)),
        **costs,
        "trainer_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "engine_peak_mb": round(engine_peak_mb()),
    }
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=SEED_POLICY)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--environment", default="office")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--task-tokens", type=int, default=RolloutLimits().task_tokens)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=128)
    parser.add_argument("--no-update", action="store_true", help="rollouts alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as adapters:
        asyncio.run(run(options, Path(adapters)))


if __name__ == "__main__":
    main()
