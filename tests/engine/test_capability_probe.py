"""The capabilities a model server must prove, and the flag that is named if it lacks one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import EngineError, SettingError
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import Sampling
from app.engine.replica import ServerRequirements
from tests.support.engine_process import engine_process
from tests.support.every_row import every_row
from tests.support.faulty_proxy import (
    COMPLETIONS,
    Fault,
    Forward,
    Reply,
    answering,
    faulty_proxy,
    rewriting,
    sound,
    until,
)
from tests.support.tiny_model import MAX_LENGTH, make_model_dir

LOAD = "/v1/load_lora_adapter"
QUICK = HealthChecks(interval=0.05, timeout=10.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def upstream(model: Path) -> Iterator[str]:
    with engine_process(model, "--embeddings", "none", "--max-loras", "4") as url:
        yield url


def needs(model: Path, adapters: Path, **more: Any) -> ServerRequirements:
    return ServerRequirements(
        **{"adapters": adapters, "model": model, "rank": 16, "loras": 2, "vocabulary": 259, **more}
    )


async def test_a_server_proves_its_capabilities_and_keeps_its_state(
    upstream: str, model: Path, tmp_path: Path
) -> None:
    async with HttpEngine([upstream], requirements=needs(model, tmp_path), checks=QUICK) as engine:
        [found] = await engine.check()
        assert (found.max_model_len, found.max_loras, found.rank, found.note) == (MAX_LENGTH, 4, 16, "")
        assert engine.replicas[0].max_loras == 4
        assert await engine.models() == ["base"]
    assert os.listdir(tmp_path) == [".capability-16-3x64x64"]


async def test_another_process_may_evict_the_probe_adapter(upstream: str, model: Path, tmp_path: Path) -> None:
    async def unloaded_before(path: str, _: Any, forward: Forward) -> Reply | None:
        reply = await forward()
        return (404, {"error": {"message": "no such adapter"}}) if path == "/v1/unload_lora_adapter" else reply

    async with (
        faulty_proxy(upstream, unloaded_before) as proxy,
        HttpEngine([proxy.url], requirements=needs(model, tmp_path), checks=QUICK) as engine,
    ):
        assert [found.rank for found in await engine.check()] == [16]


def failing_load(status: int, message: str, *, of_noop: bool) -> Fault:
    """Fails the load of a missing directory, or of the no-op adapter."""

    async def fault(path: str, body: Any, forward: Forward) -> Reply | None:
        if path == LOAD and of_noop != body["lora_path"].endswith(".capability-none"):
            return status, {"error": {"message": message}}
        return await forward()

    return fault


def changing(change: Any) -> Fault:
    """Changes the one choice of each reply, given the request."""

    def spoil(body: Any, answer: Any) -> Any:
        change(body, answer["choices"][0])
        return answer

    return rewriting(COMPLETIONS, spoil)


def processed(body: Any, choice: Any) -> None:
    """Like --logprobs-mode processed_logprobs: the only allowed token has all probability."""
    if body.get("allowed_token_ids"):
        choice["logprobs"]["token_logprobs"] = [0.0]


def tempered(body: Any, choice: Any) -> None:
    if body["temperature"]:
        choice["logprobs"]["token_logprobs"][0] /= body["temperature"]


def logits(_: Any, choice: Any) -> None:
    """Like --logprobs-mode raw_logits."""
    choice["logprobs"]["token_logprobs"][0] += 12.0


def mistaken(_: Any, choice: Any) -> None:
    choice["prompt_token_ids"] = [*choice["prompt_token_ids"], 9]


FAULTS = [
    (answering(200, {"data": [{"id": "llama"}]}, "/v1/models"), "--served-model-name base"),
    (answering(404, {"detail": "Not Found"}, LOAD), "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    (
        failing_load(500, "LoRA is not enabled. Use --enable-lora to enable LoRA.", of_noop=False),
        "--enable-lora$",
    ),
    (answering(200, "Success", LOAD), "which does not exist"),
    (
        failing_load(500, "LoRA rank 16 is greater than max_lora_rank 8.", of_noop=True),
        "--max-lora-rank 16$",
    ),
    (failing_load(404, "No adapter found for /x", of_noop=True), "mount the same directory at the same path"),
    (
        answering(200, 'vllm:lora_requests_info{max_lora="1",running_lora_adapters=""} 1.0', "/metrics"),
        "--max-loras 2$",
    ),
    (changing(processed), "--logprobs-mode raw_logprobs"),
    (changing(tempered), "--logprobs-mode raw_logprobs"),
    (changing(logits), "--logprobs-mode raw_logprobs"),
    (changing(lambda _, choice: choice.update(token_ids=None)), "return_token_ids"),
    (changing(lambda _, choice: choice.update(token_ids=[259])), "does it serve another model"),
    (changing(mistaken), "another prompt"),
    (answering(200, "<html>", "/version"), "does not answer as vLLM does"),
    (answering(404, "<html>", "/health"), "is not vLLM: .*404"),
]


async def test_a_server_that_lacks_a_feature_is_refused_with_the_flag_to_set(
    upstream: str, model: Path, tmp_path: Path
) -> None:
    with every_row() as row:
        for at, (fault, words) in enumerate(FAULTS):
            with row(words):
                directory = tmp_path / str(at)
                directory.mkdir()
                async with (
                    faulty_proxy(upstream, fault) as proxy,
                    HttpEngine([proxy.url], requirements=needs(model, directory), checks=QUICK) as engine,
                ):
                    with pytest.raises(SettingError, match=words):
                        await engine.check()
                    with pytest.raises(EngineError, match=words.rstrip("$")):  # and it gets no requests
                        await engine.complete([1], model="base", sampling=Sampling(max_tokens=1))


async def test_a_server_that_is_down_does_not_prevent_the_start(
    upstream: str, model: Path, tmp_path: Path
) -> None:
    async with faulty_proxy(upstream) as proxy:
        await proxy.down()
        async with HttpEngine([proxy.url, upstream], requirements=needs(model, tmp_path), checks=QUICK) as engine:
            assert [found.url for found in await engine.check()] == [upstream]
        async with HttpEngine([proxy.url], requirements=needs(model, tmp_path), checks=QUICK) as engine:
            assert await engine.check() == []


async def test_a_misconfigured_server_stays_out_until_it_is_fixed(
    upstream: str, model: Path, tmp_path: Path
) -> None:
    async with faulty_proxy(upstream, answering(404, {"detail": "Not Found"}, LOAD)) as proxy:
        await proxy.down()
        async with HttpEngine([proxy.url, upstream], requirements=needs(model, tmp_path), checks=QUICK) as engine:
            await proxy.up()
            await until(lambda: "VLLM_ALLOW_RUNTIME" in str(engine.replicas[0].cause))
            assert f"{proxy.url} is out: {proxy.url} does not load adapters at runtime" in await engine.ready()
            proxy.fault = sound
            await until(lambda: engine.replicas[0].alive)
            assert len(await engine.check()) == 2


async def test_the_rank_is_not_probed_if_the_base_does_not_give_its_shape(
    upstream: str, model: Path, tmp_path: Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": ["linear_attention"] * 3}))
    async with HttpEngine([upstream], requirements=needs(tmp_path, tmp_path / "adapters"), checks=QUICK) as engine:
        [found] = await engine.check()
    assert found.rank is None
    assert "does not give the shape" in found.note


async def test_a_server_full_of_adapters_is_not_refused(upstream: str, model: Path, tmp_path: Path) -> None:
    fault = failing_load(409, "4 adapters are loaded, which is --max-loras", of_noop=True)
    async with (
        faulty_proxy(upstream, fault) as proxy,
        HttpEngine([proxy.url], requirements=needs(model, tmp_path), checks=QUICK) as engine,
    ):
        [found] = await engine.check()
    assert (found.rank, "4 adapters" in found.note) == (None, True)
