"""Tokens in, tokens out: the agent records exactly what vLLM gets and returns."""

import asyncio

import httpx
import pytest

from app.engine.client import HttpEngine
from app.engine.protocol import Sampling
from tests.integration.vllm.adapters import reference
from tests.integration.vllm.live_requests import metric, off_by, random_prompt, sampling, spoken, tokenizer, until
from trainer.learning.adapter import PublishedAdapter

RUNNING = "vllm:num_requests_running"
GENERATED = "vllm:generation_tokens_total"


async def test_token_ids_are_sent_and_returned_unchanged(engine: HttpEngine, http: httpx.AsyncClient) -> None:
    """The text of these random ids tokenizes to other ids."""
    prompt = random_prompt(1, 200)
    assert tokenizer().encode(tokenizer().decode(prompt)) != prompt
    asked = {"model": "base", "prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    [choice] = (await http.post("/v1/completions", json=asked)).json()["choices"]
    assert choice["prompt_token_ids"] == prompt
    answer = await engine.complete(prompt, model="base", sampling=sampling(8))
    assert list(answer.ids) == choice["token_ids"]
    assert off_by(answer, None, prompt) < 1e-4


async def test_a_stop_token_ends_the_answer_and_is_part_of_it(engine: HttpEngine) -> None:
    prompt = spoken("archive every one of my mails from iris")
    free = await engine.complete(prompt, model="base", sampling=sampling(24))
    stop = free.ids[9]
    end = free.ids.index(stop) + 1
    asked = Sampling(max_tokens=24, temperature=0, stop_token_ids=(stop,))
    stopped = await engine.complete(prompt, model="base", sampling=asked)
    assert (stopped.ids, stopped.finish) == (free.ids[:end], "stop")
    assert len(stopped.logprobs) == end
    short = await engine.complete(prompt, model="base", sampling=sampling(end - 1))
    assert (short.ids, short.finish) == (free.ids[: end - 1], "length")


async def test_the_end_of_the_models_turn_needs_no_stop_token(engine: HttpEngine) -> None:
    answer = await engine.complete(spoken("archive my mails"), model="base", sampling=sampling(400))
    assert answer.finish == "stop"
    assert answer.ids[-1] in tokenizer().eos_ids


async def test_a_seed_is_deterministic_and_another_seed_differs(engine: HttpEngine) -> None:
    prompt = random_prompt(2, 30)
    drawn = [
        await engine.complete(prompt, model="base", sampling=sampling(20, temperature=1.0, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert drawn[0].ids == drawn[1].ids != drawn[2].ids


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_a_forced_token_has_its_unmasked_logprob(
    engine: HttpEngine, adapters: list[PublishedAdapter], temperature: float
) -> None:
    await engine.load_adapter(adapters[0].hash, adapters[0].path)
    prompt = spoken("archive my mails")
    for model, path in (("base", None), (adapters[0].hash, adapters[0].path)):
        for token in (17, 400, 901):
            asked = Sampling(max_tokens=1, temperature=temperature, allowed_token_ids=(token,))
            answer = await engine.complete(prompt, model=model, sampling=asked)
            assert answer.ids == (token,)
            assert answer.logprobs == pytest.approx(reference(path, prompt, [token]), abs=1e-4)


async def test_a_cancelled_generation_stops_on_the_server(engine: HttpEngine, http: httpx.AsyncClient) -> None:
    before = await metric(http, GENERATED)
    asking = [
        asyncio.create_task(engine.complete(random_prompt(seed, 20), model="base", sampling=_endless()))
        for seed in range(8)
    ]
    await until(lambda: metric(http, RUNNING), len(asking), seconds=60)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await until(lambda: metric(http, RUNNING), 0, seconds=5)
    assert await metric(http, GENERATED) - before < 0.9 * len(asking) * _endless().max_tokens


def _endless() -> Sampling:
    """As long as the context allows: the one allowed token is not a stop token."""
    return Sampling(max_tokens=900, allowed_token_ids=(17,))
