"""The probe of a hosted model: what it finds out, and what it says where a model cannot be used."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.base.errors import EngineError, EngineRefusalError
from app.engine.hosted.client import Abilities, OpenAiChatModel
from app.engine.hosted.probe import probe
from tests.support.every_row import every_row
from tests.support.odd_endpoint import Answer, OddEndpoint, Reply, refused, said

COUNTED = {"prompt_tokens": 7, "completion_tokens": 5}
PLAIN = Abilities()


def counting(sent: Mapping[str, Any], **more: Any) -> Reply:
    """As a model that counts on beyond the stop string, unless its endpoint ends it there."""
    return said("1 2 3 4" if "stop" in sent else "1 2 3 4 5 6 7 8 9", usage=COUNTED, **more)


def listing(*names: str, **fields: Any) -> Reply:
    return Reply({"object": "list", "data": [{"id": name, "object": "model", **fields} for name in names]})


async def found(endpoint: OddEndpoint, name: str = "wise-1", key: str = "") -> Abilities:
    async with endpoint.listening() as url, OpenAiChatModel(url, name, key=key, patience=0) as model:
        return await probe(model)


async def test_the_abilities_of_an_endpoint_are_found() -> None:
    def thinking(_: Mapping[str, Any]) -> Reply:
        return said("", finish="length", reasoning_content="I am asked to", usage=COUNTED)

    def picky(sent: Mapping[str, Any]) -> Reply:
        refusals = [("max_tokens", "Unsupported parameter: max_tokens"), ("temperature", "temperature: only 1")]
        return next((refused(text) for field, text in refusals if field in sent), counting(sent))

    rows: list[tuple[str, Answer, Abilities]] = [
        ("plain", counting, PLAIN),
        ("no stops", lambda _: said("1 2 3 4 5 6 7 8 9", usage=COUNTED), Abilities(stops=False)),
        ("no usage", lambda _: said("1 2 3 4"), Abilities(usage=False)),
        ("thoughts", thinking, Abilities(thoughts="reasoning_content")),
        ("tags", lambda _: said("<think>The", "length", COUNTED), Abilities(thoughts="tags")),
        ("picky", picky, Abilities(limit="max_completion_tokens", temperature=False)),
    ]
    with every_row() as row:
        for name, answer, expected in rows:
            with row(name):
                assert await found(OddEndpoint(answer)) == expected


async def test_the_context_is_what_the_server_tells_in_its_own_way() -> None:
    running = {
        "models": [{"name": "other:1b", "context_length": 1}, {"name": "wise-1:latest", "context_length": 4096}]
    }
    rows: list[tuple[str, dict[str, Reply], int | None]] = [
        ("vLLM", {"/v1/models": listing("wise-1", max_model_len=8192)}, 8192),
        ("a router", {"/v1/models": listing("wise-1", "other", context_length=200_000)}, 200_000),
        ("an alias", {"/v1/models": listing("wise-1-2026", max_model_len=4096)}, 4096),
        ("llama.cpp", {"/v1/models": listing("a.gguf", meta={"n_ctx_train": 32768}),
                       "/props": Reply({"default_generation_settings": {"n_ctx": 2048}})}, 2048),
        ("llama.cpp, closed", {"/v1/models": listing("a.gguf", meta={"n_ctx_train": 32768})}, 32768),
        ("Ollama", {"/v1/models": listing("wise-1:latest"), "/api/ps": Reply(running)}, 4096),
        ("LM Studio", {"/api/v0/models/wise-1": Reply({"id": "wise-1", "max_context_length": 32768,
                                                      "loaded_context_length": 4096})}, 4096),
        ("none", {"/v1/models": listing("wise-1", "other")}, None),
        ("nonsense", {"/v1/models": listing("wise-1", max_model_len="long"), "/props": Reply([1]),
                      "/api/ps": Reply({"models": [7, None]})}, None),
        ("no list", {}, None),
    ]  # fmt: skip
    with every_row() as row:
        for name, pages, expected in rows:
            endpoint = OddEndpoint(counting)
            endpoint.pages = pages
            with row(name):
                assert (await found(endpoint)).context == expected


async def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    endpoint = OddEndpoint(lambda _: refused("The model does not exist", 404))
    endpoint.pages = {"/v1/models": listing("wise-2-mini", "wiser", "tiny")}
    with pytest.raises(
        EngineRefusalError, match=r"has no model 'wise-mini' \(404: .*; did you mean wise-2-mini\?"
    ):
        await found(endpoint, "wise-mini")
    with pytest.raises(
        EngineRefusalError, match=r"has no model 'gpt' \(404: .*; it has tiny, wise-2-mini, wiser$"
    ):
        await found(endpoint, "gpt")


async def test_names_that_an_endpoint_lists_without_the_models_are_known() -> None:
    rows: list[tuple[str, tuple[str, ...], str]] = [
        ("another", ("tiny.gguf",), "tiny.gguf"),
        ("many", ("f", "e", "d", "c", "b", "a"), "a, b, c, d, e and 1 more"),
        ("itself", ("tiny", "wise-1"), ""),
        ("a tag", ("wise-1:latest",), ""),
        ("a folder", ("models/wise-1",), ""),
        ("nothing", (), ""),
    ]
    with every_row() as row:
        for name, names, expected in rows:
            endpoint = OddEndpoint(counting)
            endpoint.pages = {"/v1/models": listing(*names)}
            with row(name):
                assert (await found(endpoint)).lists == expected


async def test_a_bad_key_or_a_dead_server_ends_it_at_once() -> None:
    endpoint = OddEndpoint(lambda _: refused("Incorrect API key", 401))
    endpoint.pages = {"/v1/models": refused("Incorrect API key", 401)}
    with pytest.raises(EngineRefusalError, match=r"refuses the key \(401: Incorrect API key\)"):
        await found(endpoint, key="bad")
    assert len(endpoint.requests) == 1
    async with OpenAiChatModel("http://127.0.0.1:9", "wise-1", patience=0) as dead:
        with pytest.raises(EngineError, match="cannot be reached"):
            await probe(dead)


async def test_a_key_that_may_not_list_models_is_good_if_it_may_chat() -> None:
    endpoint = OddEndpoint(counting)
    endpoint.pages = {"/v1/models": refused("You have insufficient permissions", 403)}
    assert await found(endpoint) == PLAIN
