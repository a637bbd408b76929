"""Continuous batching: one thread owns the model; requests join and leave between its forward passes. Who is
admitted to the KV cache and shares its blocks, how tokens are drawn, and what is counted, under vLLM's names
where vLLM has the same metric.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest
from queue import Empty, SimpleQueue

import msgspec
import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from torch import Tensor

from app.model_server.decoder import Decoder
from app.model_server.generation import Generation, LookupDrafter, draft_lengths
from app.model_server.kv_cache import (
    BLOCK,
    MIN_PREFIX,
    SINK,
    BlockPool,
    PagedCache,
    PrefixCache,
    as_ids,
    common_prefix,
)
from app.model_server.lora import AdapterSet, LoraDelta

_LABELS = {"model_name": "base"}
MAX_ROWS = 64
_PREFILL_TOKENS = 2048  # of one pass; between two decoding steps fewer than twice as many
_COMPARED = 64  # waiting requests
_PASSED_OVER = 128  # later ones at most are admitted before the first
_BATCH_TOKENS = 512  # of one prefill over several rows; a longer prompt has its own
SWITCH_INTERVAL = 0.0005
"""For `sys.setswitchinterval` in a process with a scheduler. Python's 5 ms are longer than a pass of a small
model: other threads would wait that long for the interpreter lock, and their requests would miss a batch."""


class EngineMetrics:
    def __init__(self, max_loras: int = 1) -> None:
        self._registry = CollectorRegistry()
        self._running = self._gauge("vllm:num_requests_running", "Requests in the batch")
        self._waiting = self._gauge(
            "vllm:num_requests_waiting", "Requests that wait for a row of the batch, or for memory"
        )
        self._usage = self._gauge("vllm:kv_cache_usage_perc", "Part of the KV cache that running requests hold")
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of all requests")
        self._generated = self._counter("vllm:generation_tokens", "Generated tokens of all requests")
        self._queried = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hit = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Drafts that were verified")
        self._drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens that were verified")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted")
        self._batch = Histogram(
            "sage:batch_size",
            "Rows of one forward pass",
            list(_LABELS),
            registry=self._registry,
            buckets=[1, 2, 4, 8, 16, 32, 64, 128, 256],
        ).labels(**_LABELS)

        adapters = Gauge(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            ["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
            registry=self._registry,
        )
        adapters.labels(max_loras, "", "").set_to_current_time()

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(_LABELS), registry=self._registry).labels(**_LABELS)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, list(_LABELS), registry=self._registry).labels(**_LABELS)

    def set_load(self, running: int, waiting: int, usage: float) -> None:
        """`usage`: the part of the KV cache that running requests hold, 0 to 1."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._usage.set(usage)

    def count_prompt(self, tokens: int, reused: int) -> None:
        self._prompt.inc(tokens)
        self._queried.inc(tokens)
        self._hit.inc(reused)

    def count_step(self, rows: int) -> None:
        self._batch.observe(rows)

    def count_draft(self, tokens: int, accepted: int) -> None:
        self._drafts.inc()
        self._drafted.inc(tokens)
        self._accepted.inc(accepted)

    def count_generated(self, tokens: int) -> None:
        self._generated.inc(tokens)

    def text(self) -> bytes:
        return generate_latest(self._registry)


@torch.inference_mode()
def sample(
    logits: Tensor,
    temperatures: Sequence[float],
    uniforms: Sequence[float],
    allowed: Sequence[Sequence[int]] = (),
) -> tuple[list[int], list[float]]:
    """One token per row and its logprob at temperature 1. logits: (n, vocabulary); uniforms in [0, 1).

    A row with tokens in `allowed` samples one of them; its logprob stays unmasked. Temperature 0 is greedy.
    Otherwise by the inverse of the cumulative distribution, summed in double precision, so that the tail of a
    large vocabulary keeps its weight.
    """
    logprobs = torch.log_softmax(logits, -1)
    if any(allowed):
        logits = _masked(logits, allowed)
    greedy = [temperature == 0 for temperature in temperatures]
    if all(greedy):
        chosen = logits.argmax(-1)
    else:
        chosen = _sample_by_inverse_cdf(logits, temperatures, uniforms)
        if any(greedy):
            chosen = torch.where(torch.tensor(greedy, device=logits.device), logits.argmax(-1), chosen)
    return chosen.tolist(), logprobs.gather(-1, chosen[:, None])[:, 0].tolist()


def _masked(logits: Tensor, allowed: Sequence[Sequence[int]]) -> Tensor:
    masked = logits.clone()
    for row, tokens in enumerate(allowed):
        if tokens:
            masked[row] = float("-inf")
            masked[row, list(tokens)] = logits[row, list(tokens)]
    return masked


def _sample_by_inverse_cdf(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> Tensor:
    wide = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no double precision
    temperature = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
    cumulative = torch.softmax(logits / temperature[:, None], -1).cumsum(-1, dtype=wide)
    levels = torch.tensor(uniforms, dtype=wide, device=logits.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, levels, right=True)[:, 0]
    return tokens.clamp_max(logits.shape[-1] - 1)


class PrefixMatch(msgspec.Struct, frozen=True):
    """The first `tokens` of a prompt are cached in these blocks."""

    tokens: int
    blocks: Sequence[int]


class KvMemory:
    """A generation is admitted once the blocks for its prompt and all of its max_tokens are guaranteed, so that
    none is ever interrupted; each block is allocated when its first position is needed. Others keep away from
    those that follow it while they can.
    """

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        self.prefixes = PrefixCache(lambda blocks: self.pool.keep(blocks), lambda blocks: self.pool.drop(blocks))
        self.pool = BlockPool(range(SINK + 1, cache.count), self.prefixes.drop_oldest)
        self._reserved = 0  # blocks that admitted generations may still allocate
        self._claims: dict[Generation, range] = {}  # where each goes on, so that its blocks are consecutive

    @property
    def tokens(self) -> int:
        """The longest sequence that fits."""
        return self.pool.size * BLOCK

    @property
    def usage(self) -> float:
        """The part of the blocks that running generations hold."""
        return self.pool.in_use / self.pool.size

    def match(self, generation: Generation, running: Sequence[Generation]) -> PrefixMatch:
        """The longest prefix of the prompt computed with the same weights, by a finished or a running row.

        The last token must run, for its logits.
        """
        ids = generation.prompt[:-1]
        count, blocks = self.prefixes.longest_match(generation.adapter, ids)
        for other in running:
            if other.start == generation.start and (shared := common_prefix(other.prompt, ids)) > count:
                count, blocks = shared, other.blocks
        return PrefixMatch(count, blocks) if count >= MIN_PREFIX else PrefixMatch(0, ())

    def may_evict(self, generation: Generation) -> bool:
        """Whether it may cost cached prefixes to admit it."""
        return self._reserved + _most_blocks(generation) > self.pool.free

    def cached_tokens(self, generation: Generation) -> int:
        """How many of its first tokens are cached, as of now."""
        if generation.cached_version != self.prefixes.version:
            generation.cached = self.prefixes.shared_tokens(generation.adapter, generation.prompt)
            generation.cached_version = self.prefixes.version
        return generation.cached

    def admit(self, generation: Generation, match: PrefixMatch) -> bool:
        """False if it has to wait until others finish. Full blocks are shared, the last one is copied."""
        full, rest = divmod(match.tokens, BLOCK)
        shared, needed = match.blocks[:full], _most_blocks(generation)
        if self.pool.in_use + self._reserved + needed - self.pool.held(shared) > self.pool.size:
            return False
        self.pool.hold(shared)
        generation.blocks, generation.computed = list(shared), match.tokens
        self._reserved += needed - full
        if rest:
            # Eviction may free the source, and hand it out as the target: then there is nothing to copy.
            self._allocate(generation)
            self._cache.copy(match.blocks[full], generation.blocks[full])
        return True

    def extend(self, generation: Generation, length: int) -> None:
        """Allocate the blocks of the first `length` positions."""
        while len(generation.blocks) * BLOCK < length:
            self._allocate(generation)

    def release(self, generation: Generation, *, keep: bool) -> None:
        """Keep what has run of a generation that ends for others, as long as there is room."""
        if keep:
            length = len(generation.prompt) + len(generation.ids) - 1 if generation.ids else generation.computed
            ids = np.concatenate([generation.prompt, as_ids(generation.ids)])[:length]
            self.prefixes.add(generation.adapter, ids, tuple(generation.blocks[: -(-length // BLOCK)]))
        self._free(generation)

    def discard(self, generation: Generation) -> None:
        """Free the blocks of a generation whose values are not finite."""
        if freed := self._free(generation):
            self._cache.zero(freed)

    def _allocate(self, generation: Generation) -> None:
        claim = self._claims.pop(generation, None)
        if not claim or not self.pool.is_free(claim[0]):
            wanted = _most_blocks(generation) - len(generation.blocks)
            claim = self.pool.find_run(wanted, self._claims.values())
        self.pool.hold(claim[:1])
        generation.blocks.append(claim[0])
        self._claims[generation] = claim[1:]
        self._reserved -= 1

    def _free(self, generation: Generation) -> list[int]:
        self._reserved -= _most_blocks(generation) - len(generation.blocks)
        self._claims.pop(generation, None)
        blocks, generation.blocks = generation.blocks, []
        return self.pool.release(blocks)


def _most_blocks(generation: Generation) -> int:
    """The last token that is sampled does not run."""
    return -(-(len(generation.prompt) + generation.max_tokens - 1) // BLOCK)


class Scheduler:
    """Every public method may be called from any thread. `on_death` is called if the thread ends with an error."""

    def __init__(
        self,
        decoder: Decoder,
        adapters: AdapterSet,
        metrics: EngineMetrics,
        on_death: Callable[[], None],
        max_rows: int = MAX_ROWS,
        pass_seconds: Sequence[float] = (),
        prefill_tokens: int = _PREFILL_TOKENS,
    ) -> None:
        """pass_seconds[n - 1]: the time of a pass over n rows, by which tokens are drafted; empty: never.

        prefill_tokens: of a prompt in one pass, so that passes need little memory and do not delay other rows.
        """
        self._decoder, self._adapters, self._metrics, self._on_death = decoder, adapters, metrics, on_death
        self._max_rows, self._pass_seconds, self._prefill_tokens = max_rows, pass_seconds, prefill_tokens
        self.memory = KvMemory(decoder.cache)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._rows: list[Generation] = []  # the last one may have run only a part of its prompt
        self._unloading: set[int] = set()  # adapters to remove when their last generation has finished
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def max_length(self) -> int:
        """Of a sequence of this model, however much memory there is."""
        return self._decoder.max_length

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
                if self._decoding():
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
        """Limits the prefill tokens, so that running rows are not delayed."""
        work = 0
        while work < self._prefill_tokens and (count := self._unfinished() or self._admit_batch()):
            work += self._prefill(count)

    def _unfinished(self) -> int:
        """The number of rows whose prompt has run only in part: 1 or 0, for none is admitted meanwhile."""
        return len(self._rows) - len(self._decoding())

    def _decoding(self) -> list[Generation]:
        """The rows whose prompts have run."""
        return self._rows[:-1] if self._rows and not self._rows[-1].prefilled else self._rows

    def _admit_batch(self) -> int:
        """Admit the next waiting request if memory allows, and those after it that fit one pass.

        Returns their number.
        """
        first, widest = len(self._rows), 0
        most = min(_BATCH_TOKENS, self._prefill_tokens)
        while self._waiting and len(self._rows) < self._max_rows:
            generation = self._next_waiting()
            match = self.memory.match(generation, self._rows[:first])  # later rows run in the coming pass
            widest = max(widest, len(generation.prompt) - match.tokens)
            admitted = self._rows[first:]
            shared = _longest_shared(admitted, generation)
            if admitted and (widest * (len(admitted) + 1) > most or shared > match.tokens + _BATCH_TOKENS // 8):
                break  # a long prompt has its own pass; a long shared prefix is reused once its row has run
            if not self.memory.admit(generation, match):
                break
            self._metrics.count_prompt(len(generation.prompt), match.tokens)
            if self._pass_seconds:
                generation.drafter = LookupDrafter(generation.prompt.tolist())
            if generation is not self._waiting[0]:
                self._waiting[0].passed_over += 1
            self._waiting.remove(generation)
            self._rows.append(generation)
        return len(self._rows) - first

    def _next_waiting(self) -> Generation:
        """The first that came; once the cache is full, the one of which most is cached.

        Agents take turns: in the order in which they came, each would drop what the next turn of another needs.
        """
        first = self._waiting[0]
        if first.passed_over >= _PASSED_OVER or not self.memory.may_evict(first):
            return first
        return max(islice(self._waiting, _COMPARED), key=self.memory.cached_tokens)

    def _prefill(self, count: int) -> int:
        """Run the prompts of the last rows, or what a pass takes of a long one. Returns the tokens computed."""
        first = len(self._rows) - count
        rows = self._rows[first:]
        starts = [row.computed for row in rows]
        for row in rows:
            row.computed = min(len(row.prompt), row.computed + self._prefill_tokens)
            self.memory.extend(row, row.computed)
        parts = [row.prompt[start : row.computed].tolist() for row, start in zip(rows, starts, strict=True)]
        self._route(rows, [1] * count)
        logits = self._decoder.prefill([row.blocks for row in rows], parts, starts)
        if not self._unfinished():
            self._draw(first, logits, [[] for _ in rows])
        elif not logits.logsumexp(-1).isfinite().all():
            self._finish(first, "error")
        return sum(map(len, parts))

    def _step(self) -> None:
        rows = self._decoding()
        drafts = self._drafts(rows)
        lengths = [1 + len(draft) for draft in drafts]
        tables, tokens, positions = list[list[int]](), list[int](), list[int]()
        for row, draft in zip(rows, drafts, strict=True):
            # The last sampled token has not run yet: its position follows the prompt and the tokens before it.
            start = len(row.prompt) + len(row.ids) - 1
            end = start + 1 + len(draft)
            self.memory.extend(row, end)
            tables += [row.blocks] * (end - start)
            tokens += [row.ids[-1], *draft]
            positions += range(start, end)
        self._route(rows, lengths)
        logits = self._decoder.advance(tables, tokens, positions)
        self._metrics.count_step(len(lengths))
        self._draw(0, logits, drafts)

    def _drafts(self, rows: Sequence[Generation]) -> list[list[int]]:
        drafts = [row.drafter.draft(row.max_tokens - len(row.ids) - 1) if row.drafter else [] for row in rows]
        if any(drafts):
            confidences = [row.drafter.confidence if row.drafter else 0.0 for row in rows]
            lengths = draft_lengths(confidences, list(map(len, drafts)), self._pass_seconds)
            drafts = [draft[:length] for draft, length in zip(drafts, lengths, strict=True)]
        return drafts

    def _route(self, rows: list[Generation], lengths: Sequence[int]) -> None:
        """Let the adapters of the rows apply in the next pass, which has lengths[i] rows of rows[i]."""
        adapters = [row.adapter for row, length in zip(rows, lengths, strict=True) for _ in range(length)]
        self._adapters.routing.set(adapters, self._decoder.device)

    def _draw(self, first: int, logits: Tensor, drafts: Sequence[list[int]]) -> None:
        """Sample for the rows from `first` on, and accept the draft of each up to the first token that differs.

        logits: after the last token of each row and after each drafted one, (tokens, vocabulary).
        """
        rows, lengths = self._rows[first : first + len(drafts)], [1 + len(draft) for draft in drafts]
        samples = sample(
            logits,
            [row.temperature for row, length in zip(rows, lengths, strict=True) for _ in range(length)],
            [uniform for row, length in zip(rows, lengths, strict=True) for uniform in row.uniforms(length)],
            [row.allowed for row, length in zip(rows, lengths, strict=True) for _ in range(length)],
        )
        drawn = iter(zip(*samples, strict=True))
        tokens = [[next(drawn) for _ in range(length)] for length in lengths]
        for index in reversed(range(len(rows))):  # a row that finishes moves only those after it
            self._append_tokens(first + index, tokens[index], drafts[index])

    def _append_tokens(self, row: int, tokens: Sequence[tuple[int, float]], draft: Sequence[int]) -> None:
        """Tokens with their logprobs. One that differs from the draft makes those after it void."""
        accepted = 0
        finish = ""
        for (token, logprob), drafted in zip_longest(tokens, draft):
            finish = self._rows[row].add(token, logprob) if math.isfinite(logprob) else "error"
            if finish or token != drafted:
                break
            accepted += 1
        if draft:
            self._metrics.count_draft(len(draft), accepted)
        if finish:
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
