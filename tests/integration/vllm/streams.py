"""Continuous requests, as rollouts make them, with the weights that answered each."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.base.errors import AppError
from app.engine.protocol import Completion
from app.releases.swap import AdapterLoader
from tests.integration.vllm.live_requests import off_by, random_prompt, sampling
from trainer.learning.adapter import PublishedAdapter

PROMPT, ANSWER = 30, 40  # tokens


@dataclass(frozen=True)
class AnsweredRequest:
    """One answered request; times are of `time.perf_counter`."""

    adapter: PublishedAdapter
    prompt: list[int]
    answer: Completion
    began: float
    ended: float

    @property
    def off_by(self) -> float:
        """The largest difference of its logprobs from those of the requested adapter."""
        return off_by(self.answer, self.adapter.path, self.prompt)


class Streams:
    """Each request uses the adapter that serves when it begins; failures are recorded."""

    def __init__(self, swap: AdapterLoader, serving: PublishedAdapter) -> None:
        self.serving = serving
        self.answered: list[AnsweredRequest] = []
        self.failures: list[AppError] = []
        self._swap = swap
        self._open = True

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """Waits at the end until all requests under way are answered."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._stream(number))
            try:
                yield
            finally:
                self._open = False

    async def _stream(self, number: int) -> None:
        turn = 0
        while self._open:
            turn += 1
            try:
                self.answered.append(await self._ask(random_prompt(1_000_000 * number + turn, PROMPT), turn))
            except AppError as error:
                self.failures.append(error)

    async def _ask(self, prompt: list[int], turn: int) -> AnsweredRequest:
        adapter, began = self.serving, time.perf_counter()
        drawing = sampling(ANSWER, temperature=1.0, seed=turn)
        answer = await self._swap.complete(prompt, model=adapter.hash, sampling=drawing)
        return AnsweredRequest(adapter, prompt, answer, began, time.perf_counter())
