"""What the agent loop costs: generated tokens per second through whole rollouts, beside bare generation.

    python tests/bench/bench_rollouts.py [--model DIR] [--scenarios 32] [--at-once 32]

Rollouts: held-out scenarios with their libraries, worlds in this process, the engine a process of its own.
Bare: the very prompts of those rollouts again, as many at once, each for as many tokens as it had, from an engine
started anew. The ratio is what sandbox, APIs, skills and this process leave of the engine's speed.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from app.agent.compact import Compact
from app.agent.loop import Agent
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.host import ForkedSandbox
from trainer.collect import Practice
from trainer.engine_process import engine_process
from trainer.environments.office.environment import OfficeEnvironment
from trainer.examine import examine
from trainer.seed_policy.demonstrations import LIMITS

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
Asked = tuple[Sequence[int], int]  # a prompt, and how many tokens answered it


class Recording:
    """An engine that remembers what it was asked. Fulfils `Engine`."""

    def __init__(self, inner: HttpEngine) -> None:
        self._inner = inner
        self.asked: list[Asked] = []

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        completion = await self._inner.complete(prompt_ids, model=model, sampling=sampling)
        self.asked.append((prompt_ids, len(completion.ids)))
        return completion


async def rollouts(options: argparse.Namespace) -> tuple[float, float, list[Asked]]:
    """Seconds, those of them that this process computed, and what the engine was asked."""
    environment = OfficeEnvironment()
    scenarios = environment.scenarios("test", options.scenarios, 7)
    tokenizer = ChatTokenizer.load(options.model)
    async with (
        engine_process(options.model, torch.device("cpu")) as url,
        HttpEngine([url]) as inner,
        ForkedSandbox() as sandbox,
    ):
        engine = Recording(inner)
        practice = Practice(Agent(engine, tokenizer, Compact(), sandbox, LIMITS), environment)
        started, computed = time.perf_counter(), time.process_time()
        await examine(practice, scenarios, library=True, at_once=options.at_once)
        return time.perf_counter() - started, time.process_time() - computed, engine.asked


async def bare(options: argparse.Namespace, asked: Sequence[Asked]) -> float:
    places = asyncio.Semaphore(options.at_once)
    async with engine_process(options.model, torch.device("cpu")) as url, HttpEngine([url]) as engine:

        async def one(prompt: Sequence[int], tokens: int) -> None:
            async with places:
                sampling = Sampling(max_tokens=tokens, temperature=0.0, seed=0)
                await engine.complete(prompt, model="base", sampling=sampling)

        started = time.perf_counter()
        await asyncio.gather(*(one(*each) for each in asked))
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=SEED_POLICY)
    parser.add_argument("--scenarios", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=32)
    options = parser.parse_args()
    whole, computed, asked = asyncio.run(rollouts(options))
    alone = asyncio.run(bare(options, asked))
    tokens = sum(length for _, length in asked)
    print(f"{3 * options.scenarios} tasks, {len(asked)} turns, {tokens} tokens, {options.at_once} at once")
    print(f"rollouts: {tokens / whole:.0f} tokens/s, {3 * options.scenarios / whole:.1f} tasks/s")
    print(f"of that, this process: {1000 * computed / len(asked):.1f} ms of CPU a turn")
    print(f"bare generation: {tokens / alone:.0f} tokens/s")
    print(f"ratio: {alone / whole:.2f}")


if __name__ == "__main__":
    main()
