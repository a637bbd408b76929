"""Requests directly to a vLLM without our code in between, as the baseline."""

import asyncio
import time
from collections.abc import Sequence

import httpx
import msgspec


class Request(msgspec.Struct, frozen=True):
    """One generation of exactly `tokens` tokens."""

    prompt: tuple[int, ...]
    tokens: int
    model: str = "base"


class Straight:
    """A client of one server. Use it as an async context manager."""

    def __init__(self, url: str, at_once: int) -> None:
        limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once, keepalive_expiry=2)
        self._http = httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False)
        self._places = asyncio.Semaphore(at_once)

    async def __aenter__(self) -> "Straight":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def load(self, name: str, path: str) -> None:
        reply = await self._http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
        reply.raise_for_status()

    async def forget(self) -> None:
        """Clears the prefix cache. The server must be in its dev mode."""
        (await self._http.post("/reset_prefix_cache")).raise_for_status()

    async def run(self, sequences: Sequence[Sequence[Request]]) -> float:
        """Seconds. Requests of a sequence run in order; sequences run concurrently, up to the limit."""
        began = time.perf_counter()
        await asyncio.gather(*map(self._one_by_one, sequences))
        return time.perf_counter() - began

    async def _one_by_one(self, sequence: Sequence[Request]) -> None:
        async with self._places:
            for request in sequence:
                await self._generate(request)

    async def _generate(self, request: Request) -> None:
        body = {
            "model": request.model,
            "prompt": request.prompt,
            "max_tokens": request.tokens,
            "ignore_eos": True,
            "temperature": 1.0,
            "seed": 1,
            "logprobs": 0,
            "return_token_ids": True,
        }
        json = {"Content-Type": "application/json"}
        reply = await self._http.post("/v1/completions", content=msgspec.json.encode(body), headers=json)
        reply.raise_for_status()
        [choice] = reply.json()["choices"]
        assert len(choice["token_ids"]) == request.tokens
