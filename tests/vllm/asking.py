"""What the tests ask a live server for, and how right the answers are."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

import httpx

from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer, Message
from tests.vllm.adapters import reference
from tests.vllm.server import SEED_POLICY

_LEAST = 4  # below are the special tokens


@cache
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(SEED_POLICY)


def spoken(instruction: str) -> list[int]:
    """The prompt of a chat that begins so."""
    return tokenizer().encode(tokenizer().render([Message("user", instruction)], generate=True))


def random_prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(_LEAST, tokenizer().vocab_size), k=length)


def sampling(tokens: int, *, temperature: float = 0.0, seed: int | None = None) -> Sampling:
    return Sampling(max_tokens=tokens, temperature=temperature, seed=seed)


def off_by(answer: Completion, adapter: Path | None, prompt: Sequence[int]) -> float:
    """How far the reported logprobs are from those of transformers and PEFT, at the worst token."""
    expected = reference(adapter, prompt, answer.ids)
    return max(abs(served - right) for served, right in zip(answer.logprobs, expected, strict=True))


async def metric(http: httpx.AsyncClient, name: str, label: str = "", *, url: str = "") -> float:
    """A figure of the server's /metrics; `label` is a part of its labels. 0 where it is not told yet."""
    lines = (await http.get(f"{url}/metrics")).text.splitlines()
    told = [line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and label in line]
    return sum(float(line.split()[-1]) for line in told)


async def until(asked: Callable[[], Awaitable[object]], wanted: object, *, seconds: float) -> None:
    """Returns once the answer is `wanted`; raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while await asked() != wanted:  # noqa: ASYNC110  a figure rings no bell
            await asyncio.sleep(0.01)
