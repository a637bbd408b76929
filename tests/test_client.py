"""The client against servers that misbehave in the ways servers do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.client import HttpEmbedder, HttpEngine
from app.engine.protocol import Sampling
from app.errors import EngineError, EngineRefusalError

ONE = Sampling(max_tokens=1, seed=4, stop_token_ids=(9,))
CHOICE = {"finish_reason": "stop", "token_ids": [5, 9], "logprobs": {"token_logprobs": [-0.5, -0.25]}}
Handler = Callable[[str, Any], tuple[int, Any]]


class Server:
    """Speaks just enough HTTP: one answer per connection, made by `handler(path, body)`."""

    def __init__(self, handler: Handler) -> None:
        self.handler, self.seen = handler, list[tuple[str, Any]]()
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((line for line in head.splitlines() if line.lower().startswith("content-length")), ":0")
        body = json.loads(await reader.readexactly(int(length.partition(":")[2])) or b"null")
        path = head.split()[1]
        self.seen.append((path, body))
        status, reply = self.handler(path, body)
        content = json.dumps(reply).encode()
        writer.write(
            f"HTTP/1.1 {status} x\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[Server]:
    server = Server(handler)
    async with await asyncio.start_server(server.answer, "127.0.0.1", port) as listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server


async def free_url() -> str:
    async with serving(lambda *_: (200, {})) as server:
        return server.url


def completing(_: str, __: Any) -> tuple[int, Any]:
    return 200, {"choices": [CHOICE]}


async def test_a_completion_is_what_the_server_reported_and_sampling_is_unbiased() -> None:
    async with serving(completing) as server, HttpEngine([server.url]) as engine:
        answer = await engine.complete([1, 2], model="m", sampling=ONE)
    assert (answer.ids, answer.logprobs, answer.finish) == ((5, 9), (-0.5, -0.25), "stop")
    path, body = server.seen[0]
    assert path == "/v1/completions"
    expected = {"model": "m", "prompt": [1, 2], "seed": 4, "stop_token_ids": [9], "temperature": 1.0}
    assert expected.items() <= body.items()
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1, 0, 0, 1)


async def test_a_server_that_is_still_starting_is_waited_for() -> None:
    url = await free_url()
    async with HttpEngine([url]) as engine:
        asking = asyncio.create_task(engine.complete([1], model="base", sampling=ONE))
        await asyncio.sleep(0.1)
        async with serving(completing, int(url.rpartition(":")[2])):
            assert (await asking).finish == "stop"


async def test_an_unreachable_server_is_named_with_what_to_do() -> None:
    url = await free_url()
    async with HttpEngine([url]) as engine:
        with pytest.raises(EngineError, match=rf"{url}.* is unreachable .*: start it, or correct ENGINE_URLS"):
            await engine.complete([1], model="base", sampling=ONE)
        assert not await engine.health()


@pytest.mark.parametrize(
    ("status", "reply", "kind", "words"),
    [
        (400, {"error": {"message": "too long"}}, EngineRefusalError, "refused with 400: too long"),
        (500, {"detail": "oops"}, EngineError, "refused with 500: .*oops"),
        (200, {"hello": 1}, EngineError, "does not answer as vLLM does"),
        (200, {"choices": [{**CHOICE, "token_ids": [1]}]}, EngineError, "1 tokens but 2 logprobs"),
        (200, {"choices": [{**CHOICE, "finish_reason": "abort"}]}, EngineError, "ended the generation early"),
    ],
)
async def test_a_bad_answer_is_an_error_and_is_not_asked_for_again(
    status: int, reply: Any, kind: type[EngineError], words: str
) -> None:
    async with serving(lambda *_: (status, reply)) as server, HttpEngine([server.url]) as engine:
        with pytest.raises(kind, match=words) as caught:
            await engine.complete([1], model="base", sampling=ONE)
    assert type(caught.value) is kind
    assert len(server.seen) == 1


async def test_a_server_error_is_not_a_refusal() -> None:
    async with serving(lambda *_: (503, {})) as server, HttpEngine([server.url]) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.complete([1], model="base", sampling=ONE)
    assert not isinstance(caught.value, EngineRefusalError)


async def test_requests_are_spread_over_the_servers() -> None:
    async with serving(completing) as one, serving(completing) as two, HttpEngine([one.url, two.url]) as engine:
        await asyncio.gather(*(engine.complete([1], model="base", sampling=ONE) for _ in range(20)))
    assert (len(one.seen), len(two.seen)) == (10, 10)


class Host:
    """A server of adapters that may refuse to load."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses, self.loaded = refuses, list[str]()

    def __call__(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in ("base", *self.loaded)]}
        if path == "/v1/load_lora_adapter" and self.refuses:
            return 500, {"error": {"message": "no room"}}
        if path == "/v1/load_lora_adapter":
            self.loaded.append(body["lora_name"])
        else:
            self.loaded.remove(body["lora_name"])
        return 200, "Success"


async def test_a_load_that_fails_on_one_server_is_undone_on_the_others() -> None:
    good, bad = Host(), Host(refuses=True)
    async with serving(good) as one, serving(bad) as two, HttpEngine([one.url, two.url]) as engine:
        with pytest.raises(EngineError, match="no room"):
            await engine.load_adapter("x", Path("/a"))
        assert [path for path, _ in one.seen][-1] == "/v1/unload_lora_adapter"
        assert good.loaded == []
        bad.refuses = False
        await engine.load_adapter("x", Path("/a"))
        assert await engine.models() == ["base", "x"]
        good.loaded.clear()
        assert await engine.models() == ["base"]
        await engine.unload_adapter("x")
        assert bad.loaded == []


async def test_an_adapter_that_was_there_before_a_failed_load_stays() -> None:
    before, bad = Host(), Host(refuses=True)
    before.loaded.append("x")
    async with serving(before) as one, serving(bad) as two, HttpEngine([one.url, two.url]) as engine:
        with pytest.raises(EngineError):
            await engine.load_adapter("x", Path("/a"))
    assert before.loaded == ["x"]


async def test_an_adapter_that_another_process_loads_at_the_same_time_is_loaded() -> None:
    host = Host()

    def raced(path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/load_lora_adapter":
            host(path, body)
            return 400, {"error": {"message": "has already been loaded"}}
        return host(path, body)

    async with serving(raced) as server, HttpEngine([server.url]) as engine:
        await engine.load_adapter("x", Path("/a"))
        assert await engine.loaded() == ["base", "x"]


async def test_a_refusal_carries_the_servers_status() -> None:
    async with serving(lambda *_: (404, {})) as server, HttpEngine([server.url]) as engine:
        with pytest.raises(EngineRefusalError) as caught:
            await engine.complete([1], model="x", sampling=ONE)
    assert caught.value.code == 404


def embedding(path: str, body: Any) -> tuple[int, Any]:
    if path == "/v1/models":
        return 200, {"data": [{"id": "base"}, {"id": "mini", "task": "embed"}]}
    rows = [{"index": index, "embedding": [3.0 * (index + 1), 4.0]} for index in range(len(body["input"]))]
    return 200, {"data": rows[::-1]}


async def test_vectors_come_in_the_order_of_the_texts_with_length_one() -> None:
    async with serving(embedding) as server:
        embedder = await HttpEmbedder.open(server.url)
        vectors = await embedder.embed(["a", "b"])
        assert await embedder.embed([]) == []
        await embedder.close()
    assert embedder.model == "mini"
    assert server.seen[1][1]["model"] == "mini"
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0.83205, 0.5547]], atol=1e-5)
    assert vectors[0].dtype == np.float32
