"""How fast the embedded engine generates, beside transformers' own `generate` on the same batch.

    python -m tests.bench.bench_engine [--model DIR] [--prompt 300] [--tokens 200] [--device cuda]

Without --model: random weights of the seed policy's size.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from app.engine.embedded.adapters import Adapters
from app.engine.embedded.decoder import Decoder, load_model
from app.engine.embedded.metrics import Metrics
from app.engine.embedded.requests import Generation, Progress
from app.engine.embedded.scheduler import Scheduler
from app.engine.protocol import Sampling

ROWS = (1, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        path = options.model or _seed_sized(Path(scratch))
        plain = load_model(path, options.device, torch.float32)
        model = load_model(path, options.device, torch.float32)
        scheduler = Scheduler(Decoder(model, max(ROWS)), Adapters(model), Metrics(), on_death=lambda: None)
        scheduler.start()
        print(f"{options.prompt} prompt tokens, {options.tokens} generated, one thread")
        for rows in ROWS:
            prompts = torch.randint(0, model.config.vocab_size, (rows, options.prompt)).numpy()
            ours = _ours(scheduler, list(prompts), options.tokens)
            theirs = _theirs(plain, prompts, options.tokens)
            total = rows * options.tokens
            print(
                f"{rows:3} at once: {total / ours:7.0f} tokens/s, {1000 * ours / options.tokens:6.2f} ms a step; "
                f"transformers {total / theirs:7.0f} tokens/s, {1000 * theirs / options.tokens:6.2f} ms"
            )
        scheduler.stop()


def _seed_sized(path: Path) -> Path:
    config = Qwen2Config(
        vocab_size=1100,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


def _ours(scheduler: Scheduler, prompts: Sequence[np.ndarray], tokens: int) -> float:
    """Seconds from the first request to the last answer, prompts included."""
    left, done = [len(prompts)], threading.Event()

    def report(_: Progress) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=tokens, temperature=1.0, seed=number)
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
