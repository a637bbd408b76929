"""The cost of the agent loop: generated tokens per second in whole rollouts, against bare generation.

    python tests/bench/bench_rollouts.py [--model DIR] [--pairs 8] [--at-once 128] [--repeats 3]

Rollouts: groups of chains as training collects them, worlds in this process. Bare: the very requests of those
rollouts again, as many at once, from an engine started anew; the same seeds give the same tokens. The ratio is
what sandbox, APIs, skills and this process leave of the engine's speed. Both engines that a trainer can have
are measured, its own child process and a model server behind HTTP. They take turns, so that a machine that
changes its pace spoils no ratio.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import torch

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.run_settings import RunSettings
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, Engine, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.search import scenario as by_scenario
from trainer.engines.embedded import subprocess_engine
from trainer.engines.servers import engine_process
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import GroupCollector, draw_chains
from trainer.worlds.office.environment import OfficeEnvironment

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
CPU = torch.device("cpu")
Asked = tuple[Sequence[int], Sampling]
Opening = Callable[[Path], AbstractAsyncContextManager[Engine]]


class Recording:
    """An engine that records its requests. Implements `Engine`."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.asked: list[Asked] = []
        self.tokens = 0

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        completion = await self._inner.complete(prompt_ids, model=model, sampling=sampling)
        self.asked.append((prompt_ids, sampling))
        self.tokens += len(completion.ids)
        return completion


@asynccontextmanager
async def own(model: Path) -> AsyncIterator[Engine]:
    async with subprocess_engine(model, "cpu") as engine:
        yield engine


@asynccontextmanager
async def http(model: Path) -> AsyncIterator[Engine]:
    async with engine_process(model, "cpu") as url, HttpEngine([url]) as engine:
        yield engine


async def rollouts(opening: Opening, options: argparse.Namespace, seed: int) -> tuple[float, float, list[Asked]]:
    """Tokens per second, milliseconds of CPU of this process per turn, and the engine's requests."""
    settings, environment = RunSettings(pairs=options.pairs), OfficeEnvironment()
    tokenizer = ChatTokenizer.load(options.model)
    chains = draw_chains(environment, "train", settings, seed)
    async with opening(options.model) as inner, ForkedSandbox() as sandbox:
        engine = Recording(inner)
        agent = Agent(engine, tokenizer, Compact(), sandbox, RolloutLimits(turns=8), temperature=1.0)
        library = lambda: InMemoryLibrary(retrieval=by_scenario)  # noqa: E731 - as training has it
        collector = GroupCollector(EpisodeRunner(agent, environment), settings, library, at_once=options.at_once)
        await inner.complete((5, 6, 7), model="base", sampling=Sampling(max_tokens=4))
        started, computed = time.perf_counter(), time.process_time()
        await collector.collect(chains, seed)
        seconds, computed = time.perf_counter() - started, time.process_time() - computed
        return engine.tokens / seconds, 1000 * computed / len(engine.asked), engine.asked


async def bare(opening: Opening, options: argparse.Namespace, asked: Sequence[Asked]) -> float:
    """Tokens per second."""
    places = asyncio.Semaphore(options.at_once)
    async with opening(options.model) as engine:

        async def one(prompt: Sequence[int], sampling: Sampling) -> int:
            async with places:
                return len((await engine.complete(prompt, model="base", sampling=sampling)).ids)

        await engine.complete((5, 6, 7), model="base", sampling=Sampling(max_tokens=4))
        started = time.perf_counter()
        tokens = sum(await asyncio.gather(*(one(*each) for each in asked)))
        return tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=SEED_POLICY)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {"own": [], "http": []}
    for seed in range(options.repeats):
        for name, opening in (("own", own), ("http", http)):
            whole, milliseconds, asked = asyncio.run(rollouts(opening, options, seed))
            alone = asyncio.run(bare(opening, options, asked))
            ratios[name].append(whole / alone)
            print(
                f"{name}: {len(asked)} turns, rollouts {whole:.0f} tokens/s ({milliseconds:.1f} ms of CPU a turn "
                f"here), bare {alone:.0f} tokens/s, ratio {whole / alone:.2f}",
                flush=True,
            )
    for name, found in ratios.items():
        print(f"{name}: median {statistics.median(found):.2f}, from {min(found):.2f} to {max(found):.2f}")


if __name__ == "__main__":
    main()
