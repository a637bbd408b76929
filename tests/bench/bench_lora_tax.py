"""The cost of adapters on vLLM: tokens per second of the base model, of one adapter, and of four in one batch.

    python -m tests.bench.bench_lora_tax [--streams 32] [--requests 64] [--tokens 64] [--repeats 3]

A server on this machine's CPU, one thread, the seed policy, adapters of rank 8 on all linear layers. They take
turns; the best of some rounds counts, because other work of the machine only ever makes them longer.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.bench.results_file import write_results
from tests.bench.straight import Request, Straight
from tests.integration.vllm.adapters import make_adapter
from tests.integration.vllm.live_requests import random_prompt
from tests.integration.vllm.server import SLOTS, VllmServer

_PROMPT = 32  # tokens


@click.command()
@click.option("--streams", default=32, show_default=True, help="requests at once")
@click.option("--requests", default=64, show_default=True, help="of each kind in a round")
@click.option("--tokens", default=64, show_default=True, help="generated for each")
@click.option("--repeats", default=3, show_default=True, help="rounds")
def main(streams: int, requests: int, tokens: int, repeats: int) -> None:
    """Measure the LoRA tax."""
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        adapters = {each.hash: str(each.path) for each in (make_adapter(directory, seed) for seed in range(SLOTS))}
        server = VllmServer(directory / "vllm.log")
        try:
            server.wait()
            kinds = {"base": ["base"], "one adapter": list(adapters)[:1], f"{SLOTS} adapters": list(adapters)}
            best = asyncio.run(_measure(server.url, adapters, kinds, (streams, requests, tokens, repeats)))
        finally:
            server.stop()
    print("| served | tokens/s | of base |\n|---|---|---|")
    for name, speed in best.items():
        print(f"| {name} | {speed:.0f} | {speed / best['base']:.0%} |")
    write_results("lora_tax", {"streams": streams, "tokens_per_second": best})


async def _measure(
    url: str, adapters: dict[str, str], kinds: dict[str, list[str]], how: tuple[int, int, int, int]
) -> dict[str, float]:
    """Tokens per second of each kind."""
    streams, requests, tokens, repeats = how
    best = dict.fromkeys(kinds, 0.0)
    async with Straight(url, streams) as server:
        for name, path in adapters.items():
            await server.load(name, path)
        for models in kinds.values():
            await server.run(_requests(models, streams, 4, seed=0))  # warm-up
        for repeat in range(repeats):
            for kind, models in kinds.items():
                seconds = await server.run(_requests(models, requests, tokens, seed=1 + repeat))
                best[kind] = max(best[kind], requests * tokens / seconds)
    return best


def _requests(models: Sequence[str], count: int, tokens: int, seed: int) -> list[list[Request]]:
    return [
        [Request(tuple(random_prompt(seed * 100_000 + n, _PROMPT)), tokens, models[n % len(models)])]
        for n in range(count)
    ]


if __name__ == "__main__":
    main()
