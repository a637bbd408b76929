"""Continuous batching: one thread owns the model; requests join and leave between its forward passes."""

import math
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from app.engine.embedded.decoder import Decoder
from app.engine.embedded.generation import Generation
from app.engine.embedded.kv_memory import KvMemory
from app.engine.embedded.lora_layers import AdapterSet, LoraDelta
from app.engine.embedded.prefix_cache import common_prefix
from app.engine.embedded.prometheus import EngineMetrics
from app.engine.embedded.sampling import sample

MAX_ROWS = 64
_PREFILL_TOKENS = 2048  # prompt tokens between two decoding steps, about
_BATCH_TOKENS = 512  # of one prefill over several rows; a longer prompt has its own
SWITCH_INTERVAL = 0.0005
"""For `sys.setswitchinterval` in a process with a scheduler. Python's 5 ms are longer than a pass of a small
model: other threads would wait that long for the interpreter lock, and their requests would miss a batch."""


class Scheduler:
    """Every public method may be called from any thread. `on_death` is called if the thread ends with an error."""

    def __init__(
        self,
        decoder: Decoder,
        adapters: AdapterSet,
        metrics: EngineMetrics,
        on_death: Callable[[], None],
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._decoder, self._adapters, self._metrics, self._on_death = decoder, adapters, metrics, on_death
        self._max_rows = max_rows
        self.memory = KvMemory(decoder.cache)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._rows: list[Generation] = []
        self._unloading: set[int] = set()  # adapters to remove when their last generation has finished
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
        """Finish running generations with reason "abort"."""
        self._commands.put(self._stop)
        self._thread.join()

    def submit(self, generation: Generation) -> None:
        self._commands.put(lambda: self._waiting.append(generation))

    def wake(self) -> None:
        """Handle cancellations now, not with the next request."""
        self._commands.put(lambda: None)

    def add_adapter(self, number: int, deltas: dict[str, LoraDelta], done: Callable[[], None]) -> None:
        def install() -> None:
            self._adapters.install(number, deltas)
            done()

        self._commands.put(install)

    def remove_adapter(self, number: int) -> None:
        """Running generations finish with the adapter."""
        self._commands.put(lambda: self._unloading.add(number))

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_commands()
                self._drop_cancelled()
                self._admit()
                if self._rows:
                    self._step()
                self._drop_adapters()
                self._metrics.set_load(len(self._rows), len(self._waiting), self.memory.usage)
        finally:
            self._drain_commands()
            for generation in [*self._rows, *self._waiting]:
                generation.finish("abort")
            if not self._stopping:
                self._on_death()

    def _stop(self) -> None:
        self._stopping = True

    def _run_commands(self) -> None:
        if not self._rows and not self._waiting:
            self._commands.get()()
        self._drain_commands()

    def _drain_commands(self) -> None:
        while True:
            try:
                self._commands.get_nowait()()
            except Empty:
                return

    def _drop_cancelled(self) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if not waiting.cancelled)
        for row in reversed(range(len(self._rows))):
            if self._rows[row].cancelled:
                self._finish(row, "abort")

    def _admit(self) -> None:
        """First come, first served; limits the prefill tokens, so that running rows are not delayed."""
        work = 0
        while work < _PREFILL_TOKENS and (reused := self._admit_batch()):
            work += self._prefill(reused)

    def _admit_batch(self) -> list[int]:
        """Admit the first waiting request if memory allows, and those after it that fit one pass.

        Returns their reused tokens.
        """
        first, reused, widest = len(self._rows), list[int](), 0
        while self._waiting and len(self._rows) < self._max_rows:
            generation = self._waiting[0]
            match = self.memory.match(generation, self._rows[:first])  # later rows run in the coming pass
            widest = max(widest, len(generation.prompt) - match.tokens)
            shared = _longest_shared(self._rows[first:], generation)
            if reused and (
                widest * (len(reused) + 1) > _BATCH_TOKENS or shared > match.tokens + _BATCH_TOKENS // 8
            ):
                break  # a long prompt has its own pass; a long shared prefix is reused once its row has run
            if not self.memory.admit(generation, match):
                break
            self._rows.append(self._waiting.popleft())
            reused.append(match.tokens)
        return reused

    def _prefill(self, reused: list[int]) -> int:
        """Run the rows admitted last, one per item. Returns the number of tokens computed."""
        first = len(self._rows) - len(reused)
        rows = self._rows[first:]
        parts = [row.prompt[count:].tolist() for row, count in zip(rows, reused, strict=True)]
        self._adapters.routing.set([row.adapter for row in rows], self._decoder.device)
        for row, count in zip(rows, reused, strict=True):
            self.memory.extend(row, len(row.prompt))
            self._metrics.count_prompt(len(row.prompt), count)
        self._draw(first, self._decoder.prefill([row.blocks for row in rows], parts, reused))
        return sum(map(len, parts))

    def _step(self) -> None:
        rows = self._rows
        self._adapters.routing.set([generation.adapter for generation in rows], self._decoder.device)
        # The last sampled token has not run yet: its position follows the prompt and the tokens before it.
        starts = [len(generation.prompt) + len(generation.ids) - 1 for generation in rows]
        for generation, start in zip(rows, starts, strict=True):
            self.memory.extend(generation, start + 1)
        logits = self._decoder.advance(
            [generation.blocks for generation in rows], [generation.ids[-1:] for generation in rows], starts
        )
        self._metrics.count_step(len(rows))
        self._draw(0, logits[:, -1])

    def _draw(self, first: int, logits: Tensor) -> None:
        """Sample a token for every row from `first` on. logits: (rows, vocabulary)."""
        rows = self._rows[first:]
        uniforms = [row.random.random() for row in rows]
        tokens, logprobs = sample(
            logits, [row.temperature for row in rows], uniforms, [row.allowed for row in rows]
        )
        for index in reversed(range(len(rows))):  # finishing one moves only rows that are done
            self._append_token(first + index, tokens[index], logprobs[index])

    def _append_token(self, row: int, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            self._finish(row, "error")
        elif finish := self._rows[row].add(token, logprob):
            self._finish(row, finish)

    def _finish(self, row: int, reason: str) -> None:
        generation = self._rows.pop(row)
        if reason == "error":
            self.memory.discard(generation)
        else:
            self.memory.release(generation, keep=generation.adapter not in self._unloading)
        self._metrics.count_generated(len(generation.ids))
        generation.finish(reason)

    def _drop_adapters(self) -> None:
        in_use = {generation.adapter for generation in [*self._rows, *self._waiting]}
        for number in self._unloading - in_use:
            self._unloading.discard(number)
            self._adapters.remove(number)
            self.memory.prefixes.drop_adapter(number)


def _longest_shared(rows: list[Generation], generation: Generation) -> int:
    """The longest prefix of the prompt in one of the rows."""
    return max(
        (common_prefix(other.prompt, generation.prompt) for other in rows if other.start == generation.start),
        default=0,
    )
