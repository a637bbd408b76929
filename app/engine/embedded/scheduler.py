"""Continuous batching: one thread owns the model; requests join and leave between its forward passes."""

import math
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor

from app.engine.embedded.adapters import Adapters, Pair
from app.engine.embedded.decoder import Decoder
from app.engine.embedded.generation import Generation
from app.engine.embedded.prefixes import SHORTEST, Prefixes, as_ids, common_prefix
from app.engine.embedded.prometheus import Metrics
from app.engine.embedded.sampling import draw

_PREFILL = 2048  # prompt tokens between two steps of the others, about
_TOGETHER = 512  # of them in one pass over several rows; a longer prompt has its own
_PREFIX_ROOM = 256 * 2**20  # bytes
SWITCH_SECONDS = 0.0005
"""For `sys.setswitchinterval` in a process that holds a scheduler. Python's 5 ms are longer than a pass of a small
model: whoever has a question for it would wait that long for every bit of it, and miss a place in the batch."""


class Scheduler:
    """Every public method may be called from any thread. `on_death` is called if the thread ends by an error."""

    def __init__(
        self, decoder: Decoder, adapters: Adapters, metrics: Metrics, on_death: Callable[[], None]
    ) -> None:
        self._decoder, self._adapters, self._metrics, self._on_death = decoder, adapters, metrics, on_death
        self._prefixes = Prefixes(_PREFIX_ROOM)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._rows: list[Generation] = []  # row i of the cache belongs to the i-th
        self._leaving: set[int] = set()  # adapters to remove when their last generation has ended
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def failed(self) -> bool:
        return not self.alive and not self._stopping

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends what is running with finish reason "abort"."""
        self._inbox.put(self._stop)
        self._thread.join()

    def submit(self, generation: Generation) -> None:
        self._inbox.put(lambda: self._waiting.append(generation))

    def wake(self) -> None:
        """Look at cancellations now, not at the next request."""
        self._inbox.put(lambda: None)

    def add_adapter(self, number: int, pairs: dict[str, Pair], done: Callable[[], None]) -> None:
        def install() -> None:
            self._adapters.install(number, pairs)
            done()

        self._inbox.put(install)

    def remove_adapter(self, number: int) -> None:
        """Generations that wear it end as they began."""
        self._inbox.put(lambda: self._leaving.add(number))

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while not self._stopping:
                self._read_inbox()
                self._drop_cancelled()
                self._admit()
                if self._rows:
                    self._step()
                self._drop_adapters()
                self._metrics.set_load(len(self._rows), len(self._waiting))
        finally:
            self._read_rest()
            for generation in [*self._rows, *self._waiting]:
                generation.finish("abort")
            if not self._stopping:
                self._on_death()

    def _stop(self) -> None:
        self._stopping = True

    def _read_inbox(self) -> None:
        if not self._rows and not self._waiting:
            self._inbox.get()()
        self._read_rest()

    def _read_rest(self) -> None:
        while True:
            try:
                self._inbox.get_nowait()()
            except Empty:
                return

    def _drop_cancelled(self) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if not waiting.cancelled)
        for row in reversed(range(len(self._rows))):
            if self._rows[row].cancelled:
                self._end(row, "abort")

    def _admit(self) -> None:
        """First come, first served; stops after some tokens, so that running rows are not held up."""
        work = 0
        while self._waiting and len(self._rows) < self._decoder.cache.rows and work < _PREFILL:
            work += self._prefill(len(self._rows), self._join())

    def _join(self) -> list[int]:
        """Takes in the first that waits, and those after it that one pass can hold. Gives what each reused."""
        first, reused, widest = len(self._rows), list[int](), 0
        while self._waiting and len(self._rows) < self._decoder.cache.rows:
            generation = self._waiting[0]
            count = self._reuse(first, generation)
            widest = max(widest, len(generation.prompt) - count)
            mates = _longest(self._rows[first:], generation)[0]
            if reused and (widest * (len(reused) + 1) > _TOGETHER or mates > count + _TOGETHER // 8):
                break  # a long prompt has its own pass; a shared one is better reused from a mate that has run
            self._rows.append(self._waiting.popleft())
            reused.append(count)
        return reused

    def _prefill(self, first: int, reused: list[int]) -> int:
        """Runs the rows from `first` on. Gives the number of tokens computed."""
        rows = self._rows[first:]
        parts = [row.prompt[count:].tolist() for row, count in zip(rows, reused, strict=True)]
        self._adapters.routing.set([row.adapter for row in rows], self._decoder.device)
        logits = self._decoder.prefill_rows(first, parts, reused)
        for row, count in zip(rows, reused, strict=True):
            self._metrics.count_prompt(len(row.prompt), count)
        self._draw(first, logits)
        return sum(map(len, parts))

    def _reuse(self, first: int, generation: Generation) -> int:
        """Copies what another row has already computed for the same weights. Gives how many tokens that were.

        The rows from `first` on are to run in the coming pass: they have nothing yet.
        """
        count, block = self._prefixes.longest(generation.adapter, generation.prompt[:-1])
        shared, source = _longest(self._rows[:first], generation)
        if shared > count and shared >= SHORTEST:
            self._decoder.cache.move(source, len(self._rows), shared)
            return shared
        if block is not None:
            self._decoder.cache.put(len(self._rows), block, count)
        return count

    def _step(self) -> None:
        rows = self._rows
        self._adapters.routing.set([generation.adapter for generation in rows], self._decoder.device)
        # The last token drawn has not run yet: its place is behind the prompt and the tokens before it.
        logits = self._decoder.advance(
            [generation.ids[-1] for generation in rows],
            [len(generation.prompt) + len(generation.ids) - 1 for generation in rows],
        )
        self._metrics.count_step(len(rows))
        self._draw(0, logits)

    def _draw(self, first: int, logits: Tensor) -> None:
        """A token for every row from `first` on. logits: (rows, vocabulary)."""
        rows = self._rows[first:]
        uniforms = [row.random.random() for row in rows]
        tokens, logprobs = draw(logits, [row.temperature for row in rows], uniforms, [row.allowed for row in rows])
        for index in reversed(range(len(rows))):  # ending one moves only rows that are already done
            self._take(first + index, tokens[index], logprobs[index])

    def _take(self, row: int, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            self._end(row, "error")
        elif finish := self._rows[row].add(token, logprob):
            self._end(row, finish)

    def _end(self, row: int, reason: str) -> None:
        """The last row takes the place of the one that ends."""
        generation, cache = self._rows[row], self._decoder.cache
        length = len(generation.prompt) + len(generation.ids) - 1
        if reason == "error":
            cache.clear(row)
        elif generation.adapter not in self._leaving:
            ids = np.concatenate([generation.prompt, as_ids(generation.ids)])[:length]
            self._prefixes.keep(generation.adapter, ids, cache.take(row, length))
        last = self._rows.pop()
        if row < len(self._rows):
            cache.move(len(self._rows), row, len(last.prompt) + len(last.ids))
            self._rows[row] = last
        self._metrics.count_generated(len(generation.ids))
        generation.finish(reason)

    def _drop_adapters(self) -> None:
        worn = {generation.adapter for generation in [*self._rows, *self._waiting]}
        for number in self._leaving - worn:
            self._leaving.discard(number)
            self._adapters.remove(number)
            self._prefixes.forget_adapter(number)


def _longest(rows: list[Generation], generation: Generation) -> tuple[int, int]:
    """How many ids of the prompt a row has too, if worth copying, and which; the last must run, for its logits."""
    ids = generation.prompt[:-1]
    found = [
        (common_prefix(other.prompt, ids), row)
        for row, other in enumerate(rows)
        if other.start == generation.start
    ]
    return max(found, default=(0, 0))
