"""The weights behind answers: logprobs of live servers against transformers and PEFT, in float32."""

import asyncio

import pytest

from app.base.errors import EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.protocol import Completion
from tests.integration.vllm.live_requests import off_by, random_prompt, sampling, spoken
from tests.integration.vllm.server import SLOTS
from trainer.learning.adapter import PublishedAdapter


async def load(engine: HttpEngine, adapters: list[PublishedAdapter]) -> None:
    for each in adapters:
        await engine.load_adapter(each.hash, each.path)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_logprobs_equal_the_trainers_in_a_batch_of_base_and_adapters(
    engine: HttpEngine, adapters: list[PublishedAdapter], temperature: float
) -> None:
    """All slots are used: on the CPU without its plugin, the last adapter answers for the base model."""
    await load(engine, adapters[:SLOTS])
    paths = {"base": None} | {each.hash: each.path for each in adapters[:SLOTS]}
    prompts = [spoken("archive my mails"), random_prompt(3, 40), random_prompt(4, 150)]

    async def one(model: str, prompt: list[int], seed: int) -> Completion:
        asked = sampling(24, temperature=temperature, seed=seed)
        return await engine.complete(prompt, model=model, sampling=asked)

    cases = [(model, prompt) for prompt in prompts for model in paths] * 2
    answers = await asyncio.gather(*(one(*case, seed) for seed, case in enumerate(cases)))
    for (model, prompt), answer in zip(cases, answers, strict=True):
        assert off_by(answer, paths[model], prompt) < 1e-4
    by_base = [
        (model, off_by(answer, None, prompt)) for (model, prompt), answer in zip(cases, answers, strict=True)
    ]
    for model in list(paths)[1:]:
        assert max(off for name, off in by_base if name == model) > 0.1  # so that the test can tell them apart


async def test_a_prefix_cached_for_other_weights_is_not_reused(
    engine: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    """Alternates models on one long prompt: the server's cache belongs to one name."""
    await load(engine, adapters[:2])
    prompt = random_prompt(5, 200)
    for model, path in [("base", None), *((each.hash, each.path) for each in adapters[:2])] * 2:
        answer = await engine.complete(prompt, model=model, sampling=sampling(4))
        assert off_by(answer, path, prompt) < 1e-4


async def test_a_name_keeps_its_weights_whatever_is_loaded_under_it(
    engine: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    """Loading in place would change the weights of running requests, so it is never used."""
    first, second = adapters[:2]
    await engine.load_adapter("named", first.path)
    await engine.load_adapter("named", second.path)
    prompt = spoken("archive my mails")
    answer = await engine.complete(prompt, model="named", sampling=sampling(8))
    assert off_by(answer, first.path, prompt) < 1e-4


async def test_an_unloaded_adapter_is_refused_and_unloading_it_again_is_no_error(
    engine: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    await load(engine, adapters[:2])
    names = [each.hash for each in adapters[:2]]
    assert await engine.models() == ["base", *names]
    await engine.unload_adapter(names[0])
    await engine.unload_adapter(names[0])
    assert await engine.models() == ["base", names[1]]
    with pytest.raises(EngineRefusalError) as caught:
        await engine.complete([5, 6], model=names[0], sampling=sampling(1))
    assert caught.value.code == 404


async def test_running_generations_are_unchanged_while_adapters_are_loaded_and_unloaded(
    engine: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    await load(engine, adapters[:1])
    mine = adapters[0]
    prompts = [random_prompt(seed, 30) for seed in range(8)]

    async def run() -> list[Completion]:
        asked = sampling(120, temperature=0.0)
        return await asyncio.gather(*(engine.complete(each, model=mine.hash, sampling=asked) for each in prompts))

    alone = await run()
    running = asyncio.create_task(run())
    for each in adapters[1:SLOTS]:
        await engine.load_adapter(each.hash, each.path)
        await engine.complete([5, 6], model=each.hash, sampling=sampling(1))
        await engine.unload_adapter(each.hash)
    assert not running.done()
    assert [answer.ids for answer in await running] == [answer.ids for answer in alone]
