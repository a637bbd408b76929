"""Requests in, answers out: names become adapters, text becomes ids, and a lost client's generation ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np

from app.engine.embedded.adapters import BASE, Adapters
from app.engine.embedded.generation import Generation, Progress
from app.engine.embedded.scheduler import Scheduler
from app.engine.embedded.schemas import CompletionRequest, LoadAdapter, ParameterError
from app.engine.protocol import Sampling
from app.engine.tokenizer import ChatTokenizer
from app.errors import ConflictError, EngineError, InvalidError, NotFoundError

BASE_NAME = "base"


class Loaded(msgspec.Struct, frozen=True):
    number: int
    path: Path


class Prepared(msgspec.Struct, frozen=True):
    """A request that can be carried out."""

    model: str
    prompt: list[int]
    adapter: int
    sampling: Sampling
    stops: frozenset[int]


class Service:
    def __init__(
        self, tokenizer: ChatTokenizer, adapters: Adapters, scheduler: Scheduler, max_adapters: int
    ) -> None:
        self.tokenizer, self.scheduler = tokenizer, scheduler
        self._adapters, self._max = adapters, max_adapters
        self.loaded: dict[str, Loaded] = {}
        self._numbers = BASE
        self._lock = asyncio.Lock()

    def prepare(self, request: CompletionRequest) -> Prepared:
        """Raises NotFoundError for a model that is not served, ParameterError for what does not fit it."""
        adapter = self._adapter(request.model)
        text = request.prompt
        prompt = self.tokenizer.encode(text) if isinstance(text, str) else text
        size = self.tokenizer.vocab_size
        if not prompt:
            raise ParameterError("prompt must hold at least one token.", "prompt")
        if not 0 <= min(prompt) <= max(prompt) < size:
            raise ParameterError(f"prompt holds token ids out of vocabulary: they must be below {size}.", "prompt")
        sampling = request.sampling(len(prompt), self.tokenizer.max_length, size)
        eos = () if request.ignore_eos else self.tokenizer.eos_ids
        return Prepared(request.model, prompt, adapter, sampling, frozenset((*sampling.stop_token_ids, *eos)))

    async def generate(self, prepared: Prepared, *, stream: bool) -> AsyncIterator[Progress]:
        """Progress until one has a finish reason. Leaving early ends the generation."""
        if not self.scheduler.alive:
            raise EngineError("the engine has stopped after an error: restart it, and look into its log.")
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[Progress]()
        generation = Generation(
            np.asarray(prepared.prompt, np.int32),
            adapter=prepared.adapter,
            sampling=prepared.sampling,
            stops=prepared.stops,
            report=lambda progress: _call(loop, inbox, progress),
            stream=stream,
        )
        self.scheduler.submit(generation)
        finished = False
        try:
            while not finished:
                progress = await inbox.get()
                finished = bool(progress.finish)
                if progress.finish == "error":
                    raise EngineError("the model gave values that are not finite: unload this adapter.")
                yield progress
        finally:
            if not finished:
                generation.cancel()
                self.scheduler.wake()

    async def load(self, request: LoadAdapter) -> None:
        """The adapter answers requests when this returns. Raises what `Adapters.read` raises."""
        name, path = request.lora_name, Path(request.lora_path)
        if not name or not request.lora_path:
            raise ParameterError("Both 'lora_name' and 'lora_path' must be provided.", "lora_name")
        if request.load_inplace:
            raise InvalidError(
                "load_inplace is not served: load the new weights under a new name.", "load_inplace"
            )
        async with self._lock:
            if name in self.loaded or name == BASE_NAME:
                raise ParameterError(f"The lora adapter '{name}' has already been loaded.", "lora_name")
            pairs = await asyncio.to_thread(self._adapters.read, path)  # room is made for none that is spoiled
            if len(self.loaded) >= self._max:
                raise ConflictError(f"{self._max} adapters are loaded, which is --max-loras: unload one first.")
            self._numbers += 1
            installed, loop = asyncio.Event(), asyncio.get_running_loop()

            def announce() -> None:
                loop.call_soon_threadsafe(installed.set)

            self.scheduler.add_adapter(self._numbers, pairs, announce)
            await installed.wait()
            self.loaded[name] = Loaded(self._numbers, path)

    async def unload(self, name: str) -> None:
        """Generations that wear it end as they began; new ones are refused."""
        async with self._lock:
            if name not in self.loaded:
                raise NotFoundError(f"The lora adapter '{name}' cannot be found.")
            self.scheduler.remove_adapter(self.loaded.pop(name).number)

    def _adapter(self, model: str) -> int:
        if model == BASE_NAME:
            return BASE
        if model not in self.loaded:
            raise NotFoundError(f"The model `{model}` does not exist.")
        return self.loaded[model].number


def _call(loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[Progress], progress: Progress) -> None:
    """From the scheduler's thread. A loop that has closed has no one waiting any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(inbox.put_nowait, progress)
