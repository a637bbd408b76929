"""Requests to a live server, and the errors of its logprobs."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

import httpx

from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer, Message
from tests.integration.vllm.adapters import reference
from tests.integration.vllm.server import SEED_POLICY

_FIRST_TOKEN = 4  # special tokens are below


@cache
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(SEED_POLICY)


def spoken(instruction: str) -> list[int]:
    """The prompt of a chat with this first message."""
    return tokenizer().encode(tokenizer().render([Message("user", instruction)], generate=True))


def random_prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(_FIRST_TOKEN, tokenizer().vocab_size), k=length)


def sampling(tokens: int, *, temperature: float = 0.0, seed: int | None = None) -> Sampling:
    return Sampling(max_tokens=tokens, temperature=temperature, seed=seed)


def off_by(answer: Completion, adapter: Path | None, prompt: Sequence[int]) -> float:
    """The largest difference of the reported logprobs from those of transformers and PEFT."""
    expected = reference(adapter, prompt, answer.ids)
    return max(abs(served - right) for served, right in zip(answer.logprobs, expected, strict=True))


async def metric(http: httpx.AsyncClient, name: str, label: str = "", *, url: str = "") -> float:
    """A value of the server's /metrics; `label` is a part of its labels. 0 if it is not reported yet."""
    lines = (await http.get(f"{url}/metrics")).text.splitlines()
    matching = [line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and label in line]
    return sum(float(line.split()[-1]) for line in matching)


async def until(asked: Callable[[], Awaitable[object]], wanted: object, *, seconds: float) -> None:
    """Waits until the value is `wanted`. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while await asked() != wanted:  # noqa: ASYNC110  a figure rings no bell
            await asyncio.sleep(0.01)
