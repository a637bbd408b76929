"""Retries while an engine is down for a moment."""

import time
from pathlib import Path

import pytest

from app.base.errors import EngineError, EngineRefusalError
from app.engine.protocol import RetryingEngine, Sampling
from app.engine.tokenizer import ChatTokenizer
from tests.support.scripted_engine import END, ScriptedEngine, byte_tokenizer

DOWN = EngineError("the engine is down")
SAMPLING = Sampling(max_tokens=100)


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    return byte_tokenizer(tmp_path)


async def test_it_retries_until_there_is_an_answer(tokenizer: ChatTokenizer) -> None:
    scripted = ScriptedEngine(tokenizer, DOWN, DOWN, "here I am")
    completion = await RetryingEngine(scripted, pause=0.01).complete([1], model="base", sampling=SAMPLING)
    assert tokenizer.decode(completion.ids) == f"here I am{END}"
    assert len(scripted.prompts) == 3


async def test_a_refusal_is_final(tokenizer: ChatTokenizer) -> None:
    scripted = ScriptedEngine(tokenizer, EngineRefusalError("no such model"), "never said")
    with pytest.raises(EngineRefusalError):
        await RetryingEngine(scripted, pause=0.01).complete([1], model="base", sampling=SAMPLING)
    assert len(scripted.prompts) == 1


async def test_it_gives_up_after_its_time(tokenizer: ChatTokenizer) -> None:
    scripted = ScriptedEngine(tokenizer, *[DOWN] * 99)
    started = time.monotonic()
    with pytest.raises(EngineError, match="down"):
        await RetryingEngine(scripted, seconds=4, pause=0.4).complete([1], model="base", sampling=SAMPLING)
    assert time.monotonic() - started < 30
    assert 3 <= len(scripted.prompts) <= 5
