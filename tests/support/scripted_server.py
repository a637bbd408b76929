"""A scripted model server over HTTP, for tests of processes that use ENGINE_URLS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar, Response, get, post
from litestar.exceptions import NotFoundException
from litestar.params import JSONBody

from app.engine.protocol import Completion, Sampling
from tests.support.listening_app import listening_app
from tests.support.scripted_engine import ScriptedEngine


@get("/health")
async def health() -> None:
    return None


@get("/version")
async def version() -> dict[str, str]:
    return {"version": "scripted"}


@get("/metrics")
async def metrics() -> str:
    return ""


def create_server(engine: ScriptedEngine) -> Litestar:
    """The part of vLLM's HTTP API that the client uses to generate, to load adapters, and to probe with single
    tokens.
    """
    loaded: list[str] = []

    @get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": name, "task": "generate"} for name in ("base", *loaded)]}

    @post("/v1/load_lora_adapter", status_code=200, sync_to_thread=False)
    def load_adapter(data: JSONBody[dict[str, str]]) -> Response[dict[str, Any]]:
        if not Path(data["lora_path"]).is_dir():
            message = f"No adapter found for {data['lora_name']}"
            return Response({"error": {"message": message}}, status_code=404)
        loaded.append(data["lora_name"])
        return Response({})

    @post("/v1/unload_lora_adapter", status_code=200)
    async def unload_adapter(data: JSONBody[dict[str, str]]) -> None:
        loaded.remove(data["lora_name"])

    @post("/v1/completions", status_code=200)
    async def complete(data: JSONBody[dict[str, Any]]) -> dict[str, Any]:
        if data["model"] not in ("base", *loaded):
            raise NotFoundException(f"The model `{data['model']}` does not exist.")
        sampling = Sampling(max_tokens=data["max_tokens"], stop_token_ids=tuple(data["stop_token_ids"]))
        allowed = data.get("allowed_token_ids")
        if allowed or sampling.max_tokens == 1:
            completion = Completion((allowed[0] if allowed else 0,), (-2.0,), "length")
        else:
            completion = await engine.complete(data["prompt"], model=data["model"], sampling=sampling)
        choice = {
            "prompt_token_ids": data["prompt"],
            "finish_reason": completion.finish,
            "token_ids": completion.ids,
            "logprobs": {"token_logprobs": completion.logprobs},
        }
        return {"choices": [choice]}

    return Litestar(
        [health, version, metrics, models, load_adapter, unload_adapter, complete],
        openapi_config=None,
        logging_config=None,
    )


@asynccontextmanager
async def scripted_server(engine: ScriptedEngine) -> AsyncIterator[str]:
    """Yields its URL."""
    async with listening_app(create_server(engine), lifespan="off") as url:
        yield url
