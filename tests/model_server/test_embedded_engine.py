"""The embedded engine over HTTP, through the app's client, against transformers and PEFT."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from app.base.errors import EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from tests.support.engine_process import engine_process
from tests.support.tiny_adapter import make_adapter, reference
from tests.support.tiny_model import MAX_LENGTH, make_model_dir

SIZE = 259


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(model_dir, root / name, seed) for seed, name in enumerate(("one", "two"))}


@pytest.fixture(scope="module")
def url(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir, "--max-batch", "32", "--max-loras", "3") as url:
        yield url


@pytest.fixture
async def engine(url: str) -> AsyncIterator[HttpEngine]:
    async with HttpEngine([url]) as engine:
        yield engine
        for name in await engine.models():
            if name != "base":
                await engine.unload_adapter(name)


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        yield http


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


async def metric(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name}{{")).split()[-1])


async def until_running(http: httpx.AsyncClient, count: int) -> None:
    while await metric(http, "vllm:num_requests_running") != count:  # noqa: ASYNC110  a figure rings no bell
        await asyncio.sleep(0.005)


async def test_logprobs_equal_those_of_a_plain_forward_pass_while_32_mixed_requests_run(
    engine: HttpEngine, model_dir: Path, adapters: dict[str, Path]
) -> None:
    for name, path in adapters.items():
        await engine.load_adapter(name, path)
    names = ["base", "one", "two"]
    prompts = [prompt_of(number // 3, 5 + 9 * (number // 3)) for number in range(32)]  # three share each prompt
    answers = await asyncio.gather(
        *(
            engine.complete(
                prompt,
                model=names[number % 3],
                sampling=Sampling(max_tokens=4 + number, temperature=(0.0, 0.7, 1.3)[number % 3], seed=number),
            )
            for number, prompt in enumerate(prompts)
        )
    )
    for number, answer in enumerate(answers):
        adapter = adapters.get(names[number % 3])
        expected = reference(model_dir, adapter, prompts[number], list(answer.ids))
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


async def test_32_requests_share_forward_passes(engine: HttpEngine, http: httpx.AsyncClient) -> None:
    before = await metric(http, "sage:batch_size_count")
    sampling = Sampling(max_tokens=100, temperature=1.0, seed=1)
    await asyncio.gather(*(engine.complete(prompt_of(n, 8), model="base", sampling=sampling) for n in range(32)))
    assert await metric(http, "sage:batch_size_count") - before < 32 * 100 / 8


async def test_a_next_turn_runs_only_its_new_tokens_and_changes_nothing(
    engine: HttpEngine, model_dir: Path, http: httpx.AsyncClient
) -> None:
    first = prompt_of(70, 60)
    answer = await engine.complete(first, model="base", sampling=Sampling(max_tokens=20, seed=5))
    before = await metric(http, "vllm:prefix_cache_hits_total")
    second = [*first, *answer.ids, *prompt_of(71, 10)]
    again = await engine.complete(second, model="base", sampling=Sampling(max_tokens=20, seed=6))
    assert await metric(http, "vllm:prefix_cache_hits_total") - before == 60 + len(answer.ids) - 1
    assert again.logprobs == pytest.approx(reference(model_dir, None, second, list(again.ids)), abs=1e-4)


async def test_the_same_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(engine: HttpEngine) -> None:
    async def ask(seed: int) -> Completion:
        sampling = Sampling(max_tokens=30, temperature=1.0, seed=seed)
        return await engine.complete(prompt_of(3, 40), model="base", sampling=sampling)

    alone = await ask(11)
    crowd = await asyncio.gather(*(ask(seed) for seed in range(20)))
    assert crowd[11].ids == alone.ids
    assert len({answer.ids for answer in crowd}) == 20


async def test_a_stop_string_ends_the_completion_with_the_token_that_completes_it(
    engine: HttpEngine, model_dir: Path
) -> None:
    tokenizer, stop = ChatTokenizer.load(model_dir), "\n``\n"
    letters, cut_short = tuple(tokenizer.encode("`\n")), 0
    for seed in range(12):
        free = Sampling(max_tokens=50, allowed_token_ids=letters, seed=seed)
        ends = msgspec.structs.replace(free, stop_strings=(stop, "zz"))
        whole = await engine.complete([5], model="base", sampling=free)
        cut = await engine.complete([5], model="base", sampling=ends)
        before, found, _ = tokenizer.decode(whole.ids).partition(stop)
        count = len(before) + len(found)  # each token is a letter
        assert cut.ids == whole.ids[:count]
        assert cut.logprobs == pytest.approx(whole.logprobs[:count], abs=1e-4)
        assert cut.finish == ("stop" if found else "length")
        cut_short += bool(found)
    assert 0 < cut_short < 12


@pytest.mark.parametrize("stream", [False, True])
async def test_the_text_of_a_completion_ends_before_its_stop_string(
    http: httpx.AsyncClient, model_dir: Path, stream: bool
) -> None:
    allowed = ChatTokenizer.load(model_dir).encode("`\n")
    body = {"prompt": [5], "max_tokens": 200, "seed": 1, "allowed_token_ids": allowed, "stream": stream}
    answer = await http.post("/v1/completions", json=body | {"stop": "\n``\n"})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line] if stream else [answer.text]
    choices = [json.loads(line)["choices"][0] for line in lines if line != "[DONE]"]
    text = "".join(choice["text"] for choice in choices)
    assert text
    assert "\n``\n" not in f"{text}\n"
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "\n``\n")


async def test_temperature_zero_is_greedy_and_a_stop_token_ends_the_completion(engine: HttpEngine) -> None:
    prompt = prompt_of(4, 30)
    greedy = Sampling(max_tokens=12, temperature=0.0)
    answer = await engine.complete(prompt, model="base", sampling=greedy)
    assert (await engine.complete(prompt, model="base", sampling=greedy)).ids == answer.ids
    assert answer.finish == "length"
    stop = answer.ids[5]
    first = answer.ids.index(stop)
    cut = await engine.complete(
        prompt, model="base", sampling=Sampling(max_tokens=12, temperature=0.0, stop_token_ids=(stop,))
    )
    assert (cut.ids, cut.finish) == (answer.ids[: first + 1], "stop")


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
async def test_the_only_allowed_token_is_sampled_with_the_models_own_logprob(
    engine: HttpEngine, model_dir: Path, temperature: float
) -> None:
    prompt, forced = prompt_of(9, 30), (7, 200)
    sampling = Sampling(max_tokens=3, temperature=temperature, allowed_token_ids=(200,))
    others = Sampling(max_tokens=3, temperature=temperature, seed=2)
    answer, free, either = await asyncio.gather(
        engine.complete(prompt, model="base", sampling=sampling),
        engine.complete(prompt, model="base", sampling=others),  # in the same batch, and unrestricted
        engine.complete(prompt, model="base", sampling=Sampling(max_tokens=20, seed=1, allowed_token_ids=forced)),
    )
    assert answer.ids == (200, 200, 200)
    assert answer.logprobs == pytest.approx(reference(model_dir, None, prompt, [200, 200, 200]), abs=1e-4)
    assert set(either.ids) == set(forced)
    assert not set(free.ids) <= set(forced)


async def test_a_cancelled_request_leaves_the_batch(engine: HttpEngine, http: httpx.AsyncClient) -> None:
    body = {"prompt": prompt_of(5, 8), "max_tokens": 500, "ignore_eos": True}
    before = await metric(http, "vllm:generation_tokens_total")
    asking = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(8)]
    await until_running(http, 8)
    for task in asking:
        task.cancel()
    await until_running(http, 0)
    assert await metric(http, "vllm:generation_tokens_total") - before < 8 * 500
    assert (await engine.complete([1, 2], model="base", sampling=Sampling(max_tokens=1))).finish == "length"


async def test_a_client_that_leaves_a_stream_ends_its_generation(http: httpx.AsyncClient) -> None:
    body = {"prompt": prompt_of(5, 8), "max_tokens": 500, "ignore_eos": True, "stream": True}
    before = await metric(http, "vllm:generation_tokens_total")
    async with http.stream("POST", "/v1/completions", json=body) as reply:
        async for _ in reply.aiter_lines():
            break
    for _ in range(1000):
        if generated := await metric(http, "vllm:generation_tokens_total") - before:  # counted at its end
            break
    assert 1 <= generated < 500


async def test_a_stream_yields_tokens_one_by_one_and_then_done(http: httpx.AsyncClient) -> None:
    body = {"prompt": "ab", "max_tokens": 6, "seed": 2, "logprobs": 0, "return_token_ids": True}
    whole = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    reply = await http.post("/v1/completions", json={**body, "stream": True})
    *events, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    pieces = [msgspec.json.decode(event)["choices"][0] for event in events]
    assert done == "[DONE]"
    assert [piece["token_ids"] for piece in pieces] == [[token] for token in whole["token_ids"]]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [value for piece in pieces for value in piece["logprobs"]["token_logprobs"]] == pytest.approx(
        whole["logprobs"]["token_logprobs"], abs=1e-5
    )
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [whole["finish_reason"]]


async def test_an_adapter_is_served_until_it_is_unloaded(engine: HttpEngine, adapters: dict[str, Path]) -> None:
    await engine.load_adapter("one", adapters["one"])
    await engine.load_adapter("one", adapters["one"])  # a name stands for the same weights: nothing to do
    assert await engine.models() == ["base", "one"]
    sampling = Sampling(max_tokens=200, temperature=1.0, seed=1)
    running = asyncio.create_task(engine.complete(prompt_of(6, 20), model="one", sampling=sampling))
    await asyncio.sleep(0.05)
    await engine.unload_adapter("one")
    with pytest.raises(EngineRefusalError, match="no model server has `one`"):
        await engine.complete([1], model="one", sampling=sampling)
    answer = await running
    await engine.load_adapter("one", adapters["one"])
    assert await engine.complete(prompt_of(6, 20), model="one", sampling=sampling) == answer


async def test_nothing_computed_with_other_weights_is_reused_even_under_the_same_name(
    engine: HttpEngine, adapters: dict[str, Path], model_dir: Path
) -> None:
    prompt = prompt_of(8, 50)
    await engine.complete(prompt, model="base", sampling=Sampling(max_tokens=6, temperature=0.0))
    for path in (adapters["one"], adapters["two"]):
        await engine.load_adapter("x", path)
        answer = await engine.complete(prompt, model="x", sampling=Sampling(max_tokens=6, temperature=0.0))
        assert answer.logprobs == pytest.approx(reference(model_dir, path, prompt, list(answer.ids)), abs=1e-4)
        await engine.unload_adapter("x")


async def test_a_prompt_that_fills_the_context_is_served_and_one_token_more_is_refused(engine: HttpEngine) -> None:
    one = Sampling(max_tokens=1)
    answer = await engine.complete(prompt_of(1, MAX_LENGTH - 1), model="base", sampling=one)
    assert len(answer.ids) == 1
    with pytest.raises(EngineRefusalError, match="maximum context length is 512 tokens"):
        await engine.complete(prompt_of(1, MAX_LENGTH), model="base", sampling=one)
