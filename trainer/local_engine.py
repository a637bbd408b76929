"""The embedded engine without its HTTP: for a trainer that rolls out on the machine it trains on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from app.engine.embedded.adapters import Adapters
from app.engine.embedded.decoder import Decoder, load_model
from app.engine.embedded.metrics import Metrics
from app.engine.embedded.scheduler import Scheduler
from app.engine.embedded.service import Service
from app.engine.embedded.wire import CompletionRequest, LoadAdapter
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.errors import EngineError

_ADAPTERS = 8


class LocalEngine:
    """Fulfils `Engine`. Adapters come and go as on a server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        request = CompletionRequest(
            model=model,
            prompt=list(prompt_ids),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_token_ids),
        )
        async for progress in self._service.generate(self._service.prepare(request), stream=False):
            if progress.finish in ("stop", "length"):
                return Completion(progress.ids, progress.logprobs, progress.finish)
        raise EngineError("the engine was stopped while it generated")

    async def load_adapter(self, name: str, path: Path) -> None:
        if name not in self._service.loaded:
            await self._service.load(LoadAdapter(name, str(path)))

    async def unload_adapter(self, name: str) -> None:
        if name in self._service.loaded:
            await self._service.unload(name)


@asynccontextmanager
async def local_engine(model: Path, device: torch.device, *, rows: int = 64) -> AsyncIterator[LocalEngine]:
    """`rows` is how many requests are decoded together. Raises ModelError where the model cannot be served."""
    loaded = await asyncio.to_thread(load_model, model, device.type, torch.float32)
    decoder = Decoder(loaded, rows)
    adapters = Adapters(loaded)
    scheduler = Scheduler(decoder, adapters, Metrics(), on_death=lambda: None)
    scheduler.start()
    try:
        yield LocalEngine(Service(ChatTokenizer.load(model), adapters, scheduler, _ADAPTERS))
    finally:
        await asyncio.to_thread(scheduler.stop)
