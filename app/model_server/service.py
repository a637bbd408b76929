"""Handles completion and adapter requests: resolves names and text, and cancels abandoned generations."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np

from app.engine.protocol import Sampling
from app.engine.tokenizer import ChatTokenizer
from app.errors import ConflictError, EngineError, InvalidError, NotFoundError
from app.model_server.generation import Generation, GenerationChunk
from app.model_server.lora_layers import BASE, AdapterSet
from app.model_server.scheduler import Scheduler
from app.model_server.schemas import CompletionRequest, LoadAdapterRequest, ParameterError, TokenLimits
from app.model_server.stop_strings import StopStrings

BASE_NAME = "base"


class LoadedAdapter(msgspec.Struct, frozen=True):
    number: int
    path: Path


class PreparedRequest(msgspec.Struct, frozen=True):
    """A validated request."""

    model: str
    prompt: list[int]
    adapter: int
    sampling: Sampling
    stops: frozenset[int]


class EngineService:
    def __init__(
        self, tokenizer: ChatTokenizer, adapters: AdapterSet, scheduler: Scheduler, max_adapters: int
    ) -> None:
        self.tokenizer, self.scheduler = tokenizer, scheduler
        self._limits = TokenLimits(
            context=min(tokenizer.max_length, scheduler.max_length),
            cache=scheduler.memory.tokens,
            vocabulary=tokenizer.vocab_size,
        )
        self._adapters, self._max = adapters, max_adapters
        self.loaded: dict[str, LoadedAdapter] = {}
        self._numbers = BASE
        self._lock = asyncio.Lock()

    @property
    def max_length(self) -> int:
        """The longest sequence, prompt included."""
        return self._limits.longest

    def prepare(self, request: CompletionRequest) -> PreparedRequest:
        """Raises NotFoundError for an unknown model, ParameterError for an invalid request."""
        adapter = self._adapter(request.model)
        text = request.prompt
        prompt = self.tokenizer.encode(text) if isinstance(text, str) else text
        size = self._limits.vocabulary
        if not prompt:
            raise ParameterError("prompt must hold at least one token.", "prompt")
        if not 0 <= min(prompt) <= max(prompt) < size:
            raise ParameterError(f"prompt holds token ids out of vocabulary: they must be below {size}.", "prompt")
        sampling = request.sampling(len(prompt), self._limits)
        eos = () if request.ignore_eos else self.tokenizer.eos_ids
        return PreparedRequest(
            request.model, prompt, adapter, sampling, frozenset((*sampling.stop_token_ids, *eos))
        )

    async def generate(self, prepared: PreparedRequest, *, stream: bool) -> AsyncIterator[GenerationChunk]:
        """Yield chunks until one has a finish reason. Leaving early cancels the generation.

        Raises NotFoundError if the adapter was unloaded since the request was prepared: the base would answer.
        """
        if not self.scheduler.alive:
            raise EngineError("the engine has stopped after an error: restart it, and check its log.")
        if self._adapter(prepared.model) != prepared.adapter:
            raise _unknown(prepared.model)
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[GenerationChunk]()
        generation = Generation(
            np.asarray(prepared.prompt, np.int32),
            adapter=prepared.adapter,
            sampling=prepared.sampling,
            stops=prepared.stops,
            stop_strings=StopStrings(self.tokenizer, texts) if (texts := prepared.sampling.stop_strings) else None,
            report=lambda chunk: _deliver(loop, chunks, chunk),
            stream=stream,
        )
        self.scheduler.submit(generation)
        finished = False
        try:
            while not finished:
                chunk = await chunks.get()
                finished = bool(chunk.finish)
                if chunk.finish == "error":
                    raise EngineError("the model gave values that are not finite: unload this adapter.")
                yield chunk
        finally:
            if not finished:
                generation.cancel()
                self.scheduler.wake()

    async def load(self, request: LoadAdapterRequest) -> None:
        """The adapter is usable when this returns. Raises what `AdapterSet.read` raises."""
        name, path = request.lora_name, Path(request.lora_path)
        if not name or not request.lora_path:
            raise ParameterError("Both 'lora_name' and 'lora_path' must be provided.", "lora_name")
        if request.load_inplace:
            raise InvalidError(
                "load_inplace is not supported: load the new weights under a new name.", "load_inplace"
            )
        async with self._lock:
            if name in self.loaded or name == BASE_NAME:
                raise ParameterError(f"The lora adapter '{name}' has already been loaded.", "lora_name")
            deltas = await asyncio.to_thread(self._adapters.read, path)  # first: a damaged one needs no room
            if len(self.loaded) >= self._max:
                raise ConflictError(f"{self._max} adapters are loaded, which is --max-loras: unload one first.")
            self._numbers += 1
            installed, loop = asyncio.Event(), asyncio.get_running_loop()

            def announce() -> None:
                loop.call_soon_threadsafe(installed.set)

            self.scheduler.add_adapter(self._numbers, deltas, announce)
            await installed.wait()
            self.loaded[name] = LoadedAdapter(self._numbers, path)

    async def unload(self, name: str) -> None:
        """Running generations finish with the adapter; new ones are refused."""
        async with self._lock:
            if name not in self.loaded:
                raise NotFoundError(f"The lora adapter '{name}' cannot be found.")
            self.scheduler.remove_adapter(self.loaded.pop(name).number)

    def _adapter(self, model: str) -> int:
        if model == BASE_NAME:
            return BASE
        if model not in self.loaded:
            raise _unknown(model)
        return self.loaded[model].number


def _unknown(model: str) -> NotFoundError:
    return NotFoundError(f"The model `{model}` does not exist.")


def _deliver(
    loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[GenerationChunk], chunk: GenerationChunk
) -> None:
    """Called by the scheduler's thread. Nothing waits on a closed loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)
