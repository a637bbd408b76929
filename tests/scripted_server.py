"""The model server's place taken by a script, over HTTP: for tests of processes that reach it by ENGINE_URLS."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from litestar import Litestar, get, post
from litestar.params import JSONBody

from app.engine.protocol import Sampling
from tests.scripted import ScriptedEngine


@get("/v1/models")
async def models() -> dict[str, Any]:
    return {"data": [{"id": "base", "task": "generate"}]}


def create_server(engine: ScriptedEngine) -> Litestar:
    """As much of vLLM's HTTP API as the client uses to generate."""

    @post("/v1/completions", status_code=200)
    async def complete(data: JSONBody[dict[str, Any]]) -> dict[str, Any]:
        sampling = Sampling(max_tokens=data["max_tokens"], stop_token_ids=tuple(data["stop_token_ids"]))
        said = await engine.complete(data["prompt"], model=data["model"], sampling=sampling)
        choice = {
            "finish_reason": said.finish,
            "token_ids": said.ids,
            "logprobs": {"token_logprobs": said.logprobs},
        }
        return {"choices": [choice]}

    return Litestar([models, complete], openapi_config=None, logging_config=None)


@asynccontextmanager
async def scripted_server(engine: ScriptedEngine) -> AsyncIterator[str]:
    """The URL it is reached at."""
    app = create_server(engine)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_level="critical"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving
