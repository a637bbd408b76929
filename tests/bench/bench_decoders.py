"""The embedded engine beside transformers' `generate` and llama.cpp: tokens per CPU second of one thread.

    sage collect --environment gym --expert gym --profile brief --scenarios 12 --seed 5 --out demos.jsonl
    python -m tests.bench.bench_decoders --model DIR --demonstrations demos.jsonl [--llama BIN --gguf Q8_0.gguf]

Prefill is one prompt of `--prompt` tokens. Decoding is real traffic: turns of the demonstrations, each after
its own context of 400 to 800 tokens, are forced token by token, so that drafts by look-up are accepted as often
as by a policy that writes these turns; `accepted` is the number of tokens per draft. transformers and llama.cpp
decode as many tokens after a prompt of `--prompt` tokens. Engines take turns in each round, because other work of
the machine slows memory for all; each figure is the best round's.

llama.cpp is measured by `llama-batched-bench` of a build for this machine, in CPU time of processes that differ
by what is measured alone.
"""

import argparse
import gc
import json
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from app.engine.tokenizer import ChatTokenizer
from app.model_server.decoder import Decoder, load_model
from app.model_server.generation import LookupDrafter, draft_lengths
from app.model_server.kv_cache import BLOCK
from app.model_server.scheduler import sample

_CONTEXT = range(400, 800)  # tokens before a turn
_STREAMS = (1, 16)
Measured = dict[str, float]  # tokens per CPU second, by what is measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--demonstrations", type=Path, required=True)
    parser.add_argument("--llama", type=Path, help="the directory of llama-batched-bench")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--prompt", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=32, help="of each stream")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    turns = list(_turns(options.model, options.demonstrations))
    print(
        f"{len(turns)} turns of {sum(len(turn) for _, turn in turns) / len(turns):.0f} tokens on average",
        flush=True,
    )
    engines: dict[str, Callable[[], Measured]] = {}
    for name in ("float32", "bfloat16", "int8"):
        engines[f"engine, {name}"] = partial(_engine, options, turns, name)
    for name in ("float32", "bfloat16"):
        engines[f"transformers, {name}"] = partial(_transformers, options, name)
    if options.llama:
        engines["llama.cpp"] = partial(_llama, options)
    best: dict[str, Measured] = {engine: {} for engine in engines}
    for number in range(options.rounds):
        for engine, measure in engines.items():
            found = measure()
            gc.collect()
            print(number + 1, engine, {what: round(value, 1) for what, value in found.items()}, flush=True)
            best[engine] = {what: max(value, best[engine].get(what, 0)) for what, value in found.items()}
    _print(best)


def _print(best: dict[str, Measured]) -> None:
    columns = ["prefill", *(f"{what}{count}" for count in _STREAMS for what in ("", "drafts, ", "accepted, "))]
    print("| tokens per CPU second |", *(f"{column} |" for column in columns))
    print("|---|" + "---|" * len(columns))
    for engine, found in best.items():
        print(f"| {engine} |", *(f"{found[column]:.1f} |" if column in found else "- |" for column in columns))


def _turns(model: Path, file: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Context and answer of each turn whose context has the length wanted."""
    tokenizer = ChatTokenizer.load(model)
    for line in file.read_text("utf-8").splitlines():
        text, context = "", list[int]()
        for message in json.loads(line)["messages"]:
            start = f"<|im_start|>{message['role']}\n"
            if message["role"] == "assistant":
                context = tokenizer.encode(text + start)
                answer = tokenizer.encode(message["content"] + "<|im_end|>")
                if len(context) in _CONTEXT:
                    yield context, answer
            text += f"{start}{message['content']}<|im_end|>\n"


def _engine(options: argparse.Namespace, turns: list[tuple[list[int], list[int]]], name: str) -> Measured:
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}[name]
    decoder = Decoder(load_model(options.model, "cpu", dtype), 1024)
    table = list(range(1, 2 + options.prompt // BLOCK))
    prompt = [5 + token % 1000 for token in range(options.prompt)]
    decoder.prefill([table], [prompt[:64]], [0])
    found = {"prefill": options.prompt / _cpu(lambda: decoder.prefill([table], [prompt], [0]))}
    pass_seconds = decoder.pass_seconds()
    for streams in _STREAMS:
        for column, seconds in ((f"{streams}", []), (f"drafts, {streams}", pass_seconds)):
            loop = _ForcedStreams(decoder, turns, streams, seconds)
            loop.step()
            loop.tokens = 0
            used = _cpu(partial(loop.run, options.tokens * streams))
            found[column] = loop.tokens / used
            if loop.drafts:
                found[f"accepted, {streams}"] = loop.accepted / loop.drafts
    return found


class _Row:
    """A turn under way: the token sampled last has not run yet."""

    def __init__(self, context: list[int], answer: list[int]) -> None:
        self.drafter = LookupDrafter(context)
        self.last, self.position, self.left = context[-1], len(context) - 1, answer

    def accept(self, draft: list[int]) -> int:
        """Go on by the tokens of the draft that are the given ones, and by the one that follows them."""
        pairs = enumerate(zip(draft, self.left, strict=False))
        count = 1 + next((at for at, (drafted, given) in pairs if drafted != given), len(draft))
        for token in self.left[:count]:
            self.drafter.append(token)
        self.last, self.position, self.left = self.left[count - 1], self.position + count, self.left[count:]
        return count


class _ForcedStreams:
    """Decodes turns that are given, as the scheduler does."""

    def __init__(
        self, decoder: Decoder, turns: list[tuple[list[int], list[int]]], streams: int, seconds: list[float]
    ) -> None:
        self._decoder, self._seconds = decoder, seconds
        self.tokens = self.drafts = self.accepted = 0
        self._random, self._turns = random.Random(1), cycle(turns)
        room = (decoder.cache.count - 1) // max(_STREAMS)
        self._tables = [list(range(1 + row * room, 1 + (row + 1) * room)) for row in range(streams)]
        self._rows = [_Row(*next(self._turns)) for _ in range(streams)]

    def run(self, tokens: int) -> None:
        while self.tokens < tokens:
            self.step()

    def step(self) -> None:
        drafts = self._drafts()
        tables, tokens, positions = list[list[int]](), list[int](), list[int]()
        for table, draft, row in zip(self._tables, drafts, self._rows, strict=True):
            tables += [table] * (1 + len(draft))
            tokens += [row.last, *draft]
            positions += range(row.position, row.position + 1 + len(draft))
        logits = self._decoder.advance(tables, tokens, positions)
        sample(logits, [1.0] * len(tokens), [self._random.random() for _ in tokens])
        counts = [row.accept(draft) for row, draft in zip(self._rows, drafts, strict=True)]
        self.tokens += sum(counts)
        self.drafts += sum(map(bool, drafts))
        self.accepted += sum(counts) - len(counts)
        self._rows = [row if row.left else _Row(*next(self._turns)) for row in self._rows]

    def _drafts(self) -> list[list[int]]:
        drafts = [row.drafter.draft(len(row.left) - 1) if self._seconds else [] for row in self._rows]
        confidences = [row.drafter.confidence for row in self._rows]
        lengths = draft_lengths(confidences, list(map(len, drafts)), self._seconds)
        return [draft[:length] for draft, length in zip(drafts, lengths, strict=True)]


def _transformers(options: argparse.Namespace, name: str) -> Measured:
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, name)).eval()
    ids = torch.tensor([[5 + token % 1000 for token in range(options.prompt + 1)]])
    found = Measured()
    with torch.inference_mode():
        for streams in _STREAMS:
            cache = DynamicCache(config=model.config)
            used = _cpu(partial(model, ids[:, :-1], past_key_values=cache, logits_to_keep=1))
            found.setdefault("prefill", options.prompt / used)
            cache.batch_repeat_interleave(streams)
            used = _cpu(partial(_generate, model, ids, cache, streams, options.tokens))
            found[f"{streams}"] = streams * options.tokens / used
    return found


def _generate(model: torch.nn.Module, ids: torch.Tensor, cache: DynamicCache, streams: int, tokens: int) -> None:
    prompts = ids.repeat(streams, 1)
    model.generate(  # type: ignore[operator]
        prompts,
        attention_mask=torch.ones_like(prompts),
        past_key_values=cache,
        do_sample=True,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
    )


def _llama(options: argparse.Namespace) -> Measured:
    start = _llama_seconds(options, 16, 1, 1)
    prompt = _llama_seconds(options, options.prompt, 1, 1)
    found = {"prefill": (options.prompt - 16) / (prompt - start)}
    for streams in _STREAMS:
        less = prompt if streams == 1 else _llama_seconds(options, options.prompt, 1, streams)
        more = _llama_seconds(options, options.prompt, 1 + options.tokens, streams)
        found[f"{streams}"] = streams * options.tokens / (more - less)
    return found


def _llama_seconds(options: argparse.Namespace, prompt: int, tokens: int, streams: int) -> float:
    """CPU time of a process that decodes in streams with a common prompt, which it computes once."""
    command = [str(options.llama / "llama-batched-bench"), "-m", str(options.gguf), "-t", "1", "-tb", "1", "-pps"]
    command += ["-c", str(streams * 1024), "-npp", str(prompt), "-ntg", str(tokens), "-npl", str(streams)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(options.llama)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _cpu(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


if __name__ == "__main__":
    main()
