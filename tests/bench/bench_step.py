"""How long one step of SAGE takes: collect, reward, update, publish, load. By default as large as the paper's.

    python tests/bench/bench_step.py [--model DIR] [--pairs 24] [--group 8] [--steps 2] [--at-once 128]

From the second step on the rollouts wear the adapter that the first one made, as in training.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import torch

from app.agent.limits import RolloutLimits
from app.agent.prompt_compact import Compact
from app.agent.rollout_loop import Agent
from app.engine.tokenizer import ChatTokenizer
from app.records import Policy
from app.run_settings import RunSettings
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.retrieval import scenario as by_scenario
from trainer.engines.subprocess_engine import subprocess_engine
from trainer.environments.office.office_environment import OfficeEnvironment
from trainer.evaluation.local import task_result
from trainer.learning.learner import Learner
from trainer.learning.lora import with_lora
from trainer.learning.model import load_model
from trainer.learning.publishing import publish
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import ChainRollout, GroupCollector, draw_chains
from trainer.sage.advantages import compute_advantages

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
CPU = torch.device("cpu")


def library() -> InMemoryLibrary:
    return InMemoryLibrary(retrieval=by_scenario)


async def run(options: argparse.Namespace, adapters: Path) -> None:
    settings = RunSettings(pairs=options.pairs, group=options.group)
    environment, tokenizer = OfficeEnvironment(), ChatTokenizer.load(options.model)
    learner = Learner(with_lora(load_model(options.model, CPU), settings.lora_rank, settings.lora_alpha), settings)
    worn = "base"
    async with subprocess_engine(options.model, "cpu") as engine, ForkedSandbox() as sandbox:
        agent = Agent(engine, tokenizer, Compact(), sandbox, RolloutLimits(turns=8), temperature=1.0)
        for step in range(options.steps):
            started = time.perf_counter()
            episode_runner = EpisodeRunner(agent, environment, Policy(worn))
            collector = GroupCollector(episode_runner, settings, library, options.at_once)
            rollouts = await collector.collect(draw_chains(environment, "train", settings, step), step)
            rolled = time.perf_counter()
            scored = [one for each in rollouts for one in each.scored]
            await asyncio.to_thread(learner.update, compute_advantages(scored, normalize=settings.normalise))
            updated = time.perf_counter()
            published = publish(learner.model, adapters)
            await engine.load_adapter(published.hash, published.path)
            worn = published.hash
            report(step, rollouts, rolled - started, updated - rolled, time.perf_counter() - updated)


def report(step: int, rollouts: list[ChainRollout], rolling: float, updating: float, loading: float) -> None:
    results = [task_result(each.scenario, episode) for each in rollouts for episode in each.episodes]
    tokens = sum(each.tokens for each in results)
    print(
        f"step {step + 1}: {rolling + updating + loading:.1f} s: {len(results)} rollouts in {rolling:.1f} s "
        f"({tokens / rolling:.0f} tokens/s), update {updating:.1f} s, publish and load {loading:.1f} s; "
        f"success {sum(each.success for each in results) / len(results):.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=SEED_POLICY)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as adapters:
        asyncio.run(run(options, Path(adapters)))


if __name__ == "__main__":
    main()
