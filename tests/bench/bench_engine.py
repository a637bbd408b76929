"""Throughput of the embedded engine against transformers' own `generate` on the same batch.

    python -m tests.bench.bench_engine [--model DIR] [--prompt 150] [--tokens 100] [--device cuda]
    python -m tests.bench.bench_engine --copying

With --copying: prompts repeat a passage, and greedy completions go on with it, with and without drafts by look-up.
Without --model: the seed policy. Each figure is the best of some passes, because other work of the machine only
ever makes them longer.
"""

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from app.engine.protocol import Sampling
from app.model_server.decoder import Decoder, load_model
from app.model_server.generation import Generation, GenerationChunk
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import EngineMetrics, Scheduler

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
ROWS = (1, 8, 32)
PASSES = 3
PASSAGE = 6  # tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=SEED_POLICY)
    parser.add_argument("--prompt", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--copying", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kv-mb", type=int, default=768)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.copying:
        _copying(options)
        return
    plain = load_model(options.model, options.device, torch.float32)
    model = load_model(options.model, options.device, torch.float32)
    decoder = Decoder(model, options.kv_mb)
    scheduler = Scheduler(decoder, AdapterSet(model), EngineMetrics(), on_death=lambda: None)
    scheduler.start()
    print(
        f"{options.model.name}, {model.num_parameters():,} parameters, {options.device}, one thread; "
        f"{options.prompt} prompt tokens, {options.tokens} generated, best of {PASSES}, prompts included"
    )
    print("| at once | tokens/s | ms a step | transformers: tokens/s | ms a step |\n|---|---|---|---|---|")
    for rows in ROWS:
        ours, theirs = float("inf"), float("inf")
        for _ in range(PASSES):
            prompts = torch.randint(4, model.config.vocab_size, (rows, options.prompt)).numpy()
            ours = min(ours, _ours(scheduler, list(prompts), options.tokens, temperature=1.0))
            theirs = min(theirs, _theirs(plain, prompts, options.tokens))
        print(f"| {rows} | {_figures(rows, options.tokens, ours)} | {_figures(rows, options.tokens, theirs)} |")
    scheduler.stop()


def _copying(options: argparse.Namespace) -> None:
    model = load_model(options.model, options.device, torch.float32)
    decoder = Decoder(model, options.kv_mb)
    seconds = decoder.pass_seconds()
    print(
        f"{options.model.name}; a pass over 1, 8 and 32 rows: ", *(f"{1000 * seconds[n - 1]:.1f} ms" for n in ROWS)
    )
    print("| at once | drafts | tokens/s | ms a step | accepted tokens per draft |\n|---|---|---|---|---|")
    for rows in ROWS:
        for pass_seconds in ([], seconds):
            metrics = EngineMetrics()
            scheduler = Scheduler(
                decoder, AdapterSet(model), metrics, on_death=lambda: None, pass_seconds=pass_seconds
            )
            scheduler.start()
            torch.manual_seed(rows)  # the same passages with drafts and without
            passage = torch.randint(4, model.config.vocab_size, (rows, PASSAGE)).numpy()
            prompts = list(np.tile(passage, 1 + options.prompt // PASSAGE)[:, : options.prompt])
            best = min(_ours(scheduler, prompts, options.tokens, temperature=0.0) for _ in range(PASSES))
            scheduler.stop()
            figures = _figures(rows, options.tokens, best)
            print(f"| {rows} | {'yes' if pass_seconds else 'no'} | {figures} | {_accepted(metrics):.1f} |")


def _accepted(metrics: EngineMetrics) -> float:
    lines = [line.split() for line in metrics.text().decode().splitlines()]
    drafts, accepted = (
        next(float(line[-1]) for line in lines if line[0].startswith(f"vllm:spec_decode_num_{name}_total"))
        for name in ("drafts", "accepted_tokens")
    )
    return accepted / drafts if drafts else 0.0


def _figures(rows: int, tokens: int, seconds: float) -> str:
    return f"{rows * tokens / seconds:.0f} | {1000 * seconds / tokens:.1f}"


def _ours(scheduler: Scheduler, prompts: Sequence[np.ndarray], tokens: int, *, temperature: float) -> float:
    """Seconds from the first request to the last completion, prefill included."""
    left, done = [len(prompts)], threading.Event()

    def report(_: GenerationChunk) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=tokens, temperature=temperature, seed=number)
        generation = Generation(
            prompt.astype(np.int32), adapter=0, sampling=sampling, stops=frozenset(), report=report
        )
        scheduler.submit(generation)
    done.wait()
    return time.perf_counter() - start


def _theirs(model: PreTrainedModel, prompts: np.ndarray, tokens: int) -> float:
    ids = torch.tensor(prompts, device=model.device)
    start = time.perf_counter()
    model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=tokens, min_new_tokens=tokens
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
