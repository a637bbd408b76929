"""A prompt longer than one pass runs in parts, between which other rows go on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from torch import Tensor

from app.engine.protocol import Sampling
from app.model_server.decoder import Decoder, Tables
from app.model_server.generation import Generation, GenerationChunk
from app.model_server.kv_cache import as_ids
from app.model_server.scheduler import Scheduler
from tests.model_server.test_engine_scheduler import begin, scheduling
from tests.support.tiny_adapter import make_adapter, reference
from tests.support.tiny_model import make_model_dir

PASS = 64
LONG = [number * number % 250 for number in range(500)]


class RecordedDecoder(Decoder):
    """Knows the lengths of the parts of each prefill, and a 1 for each step."""

    passes: tuple[list[int], ...] = ()
    after: Callable[[], None] | None = None

    def prefill(self, tables: Tables, parts: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        logits = super().prefill(tables, parts, starts)
        self._record([len(part) for part in parts])
        return logits

    def advance(self, tables: Tables, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        logits = super().advance(tables, tokens, positions)
        self._record([1])
        return logits

    def _record(self, lengths: list[int]) -> None:
        self.passes = (*self.passes, lengths)
        if self.after:
            self.after()


@contextmanager
def recording(model_dir: Path, adapter: Path | None = None) -> Iterator[tuple[Scheduler, RecordedDecoder]]:
    with scheduling(model_dir, decoder_type=RecordedDecoder, prefill_tokens=PASS) as scheduler:
        decoder = scheduler._decoder
        assert isinstance(decoder, RecordedDecoder)
        decoder.passes = ()
        if adapter:
            scheduler.add_adapter(1, scheduler._adapters.read(adapter), lambda: None)
        yield scheduler, decoder


def prefilled(passes: Sequence[list[int]]) -> int:
    """Tokens of prompts."""
    return sum(map(sum, (lengths for lengths in passes if lengths != [1])))


def abort_during_prefill(scheduler: Scheduler, decoder: RecordedDecoder, prompt: list[int], passes: int) -> None:
    answers: SimpleQueue[GenerationChunk] = SimpleQueue()
    generation = Generation(
        as_ids(prompt),
        adapter=0,
        sampling=Sampling(max_tokens=50),
        stops=frozenset(),
        report=answers.put,
    )
    decoder.after = lambda: generation.cancel() if len(decoder.passes) == passes else None
    scheduler.submit(generation)
    answer = answers.get(timeout=300)
    assert (answer.finish, answer.ids) == ("abort", ())


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_no_pass_takes_more_of_a_prompt_and_the_logprobs_are_those_of_one_pass(
    tmp_path: Path, architecture: str
) -> None:
    model_dir = make_model_dir(tmp_path / "model", architecture)
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    prompts = [LONG, LONG[:PASS], LONG[100:311], [3, 1, 4], LONG[: PASS + 1]]
    with recording(model_dir, adapter) as (scheduler, decoder):
        waits = [begin(scheduler, prompt, 20, number % 2, number) for number, prompt in enumerate(prompts)]
        answers = [wait() for wait in waits]
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = reference(model_dir, adapter if number % 2 else None, prompt, list(answer.ids))
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
    assert max(sum(lengths) for lengths in decoder.passes) == PASS


def test_running_rows_get_a_token_between_two_parts(tmp_path: Path) -> None:
    with recording(make_model_dir(tmp_path)) as (scheduler, decoder):
        running = begin(scheduler, [5, 6, 7], 300)
        begin(scheduler, LONG, 1)()
        passes: tuple[list[int], ...] = decoder.passes
        running()
    parts = [index for index, lengths in enumerate(passes) if lengths != [1]][1:]
    assert [passes[index] for index in parts] == [[PASS]] * 7 + [[500 - 7 * PASS]]
    assert [later - earlier for earlier, later in pairwise(parts)] == [2] * 7


def test_who_cancels_between_two_parts_frees_the_blocks_and_the_parts_are_reused(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path)
    with recording(model_dir) as (scheduler, decoder):
        abort_during_prefill(scheduler, decoder, LONG, passes=3)
        assert (scheduler.memory.pool.in_use, scheduler.memory._reserved) == (0, 0)
        assert decoder.passes == ([PASS],) * 3
        answer = begin(scheduler, LONG, 5)()
        assert prefilled(decoder.passes[3:]) == 500 - 3 * PASS
    assert answer.logprobs == pytest.approx(reference(model_dir, None, LONG, list(answer.ids)), abs=1e-4)


def test_a_row_whose_values_overflow_fails_with_its_first_part_and_is_not_reused(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path / "model")
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1, fill=1e30)
    with recording(model_dir, adapter) as (scheduler, decoder):
        assert begin(scheduler, LONG, 5, adapter=1)().finish == "error"
        assert decoder.passes == ([PASS],)
        assert (scheduler.memory.pool.in_use, scheduler.memory._reserved) == (0, 0)
        assert torch.isfinite(decoder.cache.blocks).all()
        answer = begin(scheduler, LONG, 5)()
    assert answer.logprobs == pytest.approx(reference(model_dir, None, LONG, list(answer.ids)), abs=1e-4)


def test_a_prompt_that_shares_a_long_beginning_waits_until_all_parts_have_run(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path)
    prompts = [[*LONG, 1, 2, 3], [*LONG, 7, 8]]
    with recording(model_dir) as (scheduler, decoder):
        answers = [wait() for wait in [begin(scheduler, prompt, 5) for prompt in prompts]]
        assert prefilled(decoder.passes) == 503 + 2
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.logprobs == pytest.approx(reference(model_dir, None, prompt, list(answer.ids)), abs=1e-4)
