"""The scheduler without HTTP: other architectures, adapters that overflow, and a clean stop."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.base.errors import ModelError
from app.engine.protocol import Sampling
from app.model_server.decoder import Decoder, load_model
from app.model_server.generation import Generation, GenerationChunk
from app.model_server.kv_cache import as_ids
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import EngineMetrics, Scheduler
from tests.support.tiny_adapter import make_adapter, reference
from tests.support.tiny_model import make_model_dir


@contextmanager
def scheduling(
    model_dir: Path,
    rows: int = 8,
    kv_mb: int = 64,
    decoder_type: type[Decoder] = Decoder,
    prefill_tokens: int = 2048,
    **adapters: Path,
) -> Iterator[Scheduler]:
    """Adapters are numbered from 1, in the order given."""
    torch.set_num_threads(1)
    decoder = decoder_type(load_model(model_dir, "cpu", torch.float32), kv_mb)
    worn = AdapterSet(decoder.model)
    scheduler = Scheduler(
        decoder,
        worn,
        EngineMetrics(),
        on_death=lambda: None,
        max_rows=rows,
        prefill_tokens=prefill_tokens,
    )
    for number, path in enumerate(adapters.values(), 1):
        worn.install(number, worn.read(path))
    scheduler.start()
    yield scheduler
    scheduler.stop()


def asking(prompt: Sequence[int], tokens: int, adapter: int = 0) -> Generation:
    """A request that nobody has submitted."""
    return Generation(
        as_ids(prompt),
        adapter=adapter,
        sampling=Sampling(max_tokens=tokens),
        stops=frozenset(),
        report=lambda _: None,
    )


def begin(
    scheduler: Scheduler,
    prompt: list[int],
    tokens: int,
    adapter: int = 0,
    seed: int = 1,
    *,
    stop: int | None = None,
    **sampling: Any,
) -> Callable[[], GenerationChunk]:
    """Returns a function that waits for the completion."""
    answers: list[GenerationChunk] = []
    done = threading.Event()

    def report(progress: GenerationChunk) -> None:
        answers.append(progress)
        done.set()

    generation = Generation(
        np.asarray(prompt, np.int32),
        adapter=adapter,
        sampling=Sampling(max_tokens=tokens, seed=seed, **sampling),
        stops=frozenset() if stop is None else frozenset([stop]),
        report=report,
    )
    scheduler.submit(generation)

    def wait() -> GenerationChunk:
        assert done.wait()
        return answers[0]

    return wait


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_more_requests_than_rows_all_get_the_logprobs_of_a_plain_pass(tmp_path: Path, architecture: str) -> None:
    model_dir = make_model_dir(tmp_path / "model", architecture)
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    prompts = [[3, 1, 4, 1, 5] * (2 + number) for number in range(12)]
    with scheduling(model_dir, rows=5, adapter=adapter) as scheduler:
        waits = [begin(scheduler, prompt, 3 + number, number % 2, number) for number, prompt in enumerate(prompts)]
        answers = [wait() for wait in waits]
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = reference(model_dir, adapter if number % 2 else None, prompt, list(answer.ids))
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_prompts_that_wait_together_get_the_logprobs_of_a_plain_pass(tmp_path: Path) -> None:
    """Short and long prompts, one that reuses an earlier row, and two that share most of their tokens."""
    model_dir = make_model_dir(tmp_path / "model")
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    shared = [number % 240 for number in range(200)]
    prompts = [[5], [9] * 40, [*range(60), 7], shared, [*shared[:150], 3, 2], [*range(3), *range(90)]]
    with scheduling(model_dir, rows=8, adapter=adapter) as scheduler:
        begin(scheduler, [*range(60)], 3)()
        busy = begin(scheduler, shared[::-1], 200)  # while it prefills, the others gather
        waits = [begin(scheduler, prompt, 6, number % 2, number) for number, prompt in enumerate(prompts)]
        answers = [wait() for wait in waits]
        busy()
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = reference(model_dir, adapter if number % 2 else None, prompt, list(answer.ids))
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_sequences_longer_than_the_first_block_keep_what_was_in_it(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path)
    prompt = [number % 250 for number in range(500)]
    with scheduling(model_dir) as scheduler:
        wait, short = begin(scheduler, prompt, 40), begin(scheduler, [9, 8, 7], 60)
        answer, other = wait(), short()
    assert answer.logprobs == pytest.approx(reference(model_dir, None, prompt, list(answer.ids)), abs=1e-4)
    assert other.logprobs == pytest.approx(reference(model_dir, None, [9, 8, 7], list(other.ids)), abs=1e-4)


def test_an_adapter_that_overflows_fails_alone_and_spoils_no_row(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path / "model")
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1, fill=1e30)
    prompt = [number % 250 for number in range(60)]
    with scheduling(model_dir, rows=2, adapter=adapter) as scheduler:
        neighbour = begin(scheduler, prompt, 300)
        assert begin(scheduler, prompt[::-1], 5, adapter=1)().finish == "error"
        short = begin(scheduler, [7, 8, 9], 30)()  # takes the failed one's row, beside a longer one
        for asked, answer in ((prompt, neighbour()), ([7, 8, 9], short)):
            assert answer.finish == "length"
            assert answer.logprobs == pytest.approx(reference(model_dir, None, asked, list(answer.ids)), abs=1e-4)


def test_stopping_aborts_running_generations(tmp_path: Path) -> None:
    with scheduling(make_model_dir(tmp_path)) as scheduler:
        wait = begin(scheduler, [1, 2, 3], 500)
    assert wait().finish == "abort"
    assert not scheduler.alive
    assert not scheduler.failed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_the_thread_reaches_every_client_and_ends_the_server(tmp_path: Path) -> None:
    died = threading.Event()
    model = load_model(make_model_dir(tmp_path), "cpu", torch.float32)
    scheduler = Scheduler(Decoder(model, 64), AdapterSet(model), EngineMetrics(), on_death=died.set)
    model.get_input_embeddings().weight.data = torch.zeros(3, 3)
    waits = [begin(scheduler, [9], 5) for _ in range(3)]
    scheduler.start()
    assert [wait().finish for wait in waits] == ["abort"] * 3
    assert died.wait()
    scheduler.stop()
    assert scheduler.failed


def test_a_model_with_sliding_window_attention_is_refused(tmp_path: Path) -> None:
    config = make_model_dir(tmp_path) / "config.json"
    config.write_text(config.read_text().replace('"full_attention"', '"sliding_attention"'))
    with pytest.raises(ModelError, match="sliding_attention layers: serve it with vLLM"):
        load_model(tmp_path, "cpu", torch.float32)


def test_the_first_to_come_is_passed_over_by_what_is_admitted_and_not_for_ever(tmp_path: Path) -> None:
    with scheduling(make_model_dir(tmp_path), kv_mb=1) as scheduler:
        size = scheduler.memory.tokens
        turn = [1 + token % 200 for token in range(size // 4)]
        answer = begin(scheduler, turn, 4)().ids
    first, other = asking([7] * (size // 4), size - size // 4), asking([8] * (size // 4), 4)
    following = asking([*turn, *answer, 9, 9], 4)
    scheduler._waiting.extend([first, other, following])
    assert scheduler._admit_batch() == 1
    assert scheduler._rows == [following]
    assert first.passed_over == 1
    assert scheduler._admit_batch() == 0  # no room beside it: nothing is passed over
    assert first.passed_over == 1
    first.passed_over = 128
    assert scheduler._next_waiting() is first
