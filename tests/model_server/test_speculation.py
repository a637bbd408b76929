"""Tokens drafted by look-up change the number of passes and nothing else."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from app.model_server.decoder import Decoder, load_model
from app.model_server.generation import GenerationChunk, LookupDrafter, draft_lengths
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import MAX_ROWS, EngineMetrics, Scheduler
from tests.model_server.test_engine_scheduler import begin
from tests.support.tiny_adapter import make_adapter, reference
from tests.support.tiny_model import make_model_dir

FREE = [1.0] * 1200  # a pass over many rows takes as long as one over a single row: drafting always pays
SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
REPEATED = [5, 9, 2, 7, 4, 1] * 20


class Run:
    """A scheduler and what its metrics count."""

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics) -> None:
        self.scheduler, self._metrics = scheduler, metrics

    def count(self, name: str) -> float:
        lines = self._metrics.text().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name}{{")).split()[-1])

    def greedy(self, prompt: list[int], tokens: int, stop: int | None = None) -> GenerationChunk:
        return begin(self.scheduler, prompt, tokens, temperature=0, stop=stop)()


@contextmanager
def running(
    model_dir: Path,
    pass_seconds: list[float],
    adapter: Path | None = None,
    max_rows: int = MAX_ROWS,
    *,
    started: bool = True,
) -> Iterator[Run]:
    torch.set_num_threads(1)
    decoder, metrics = Decoder(load_model(model_dir, "cpu", torch.float32), 64), EngineMetrics()
    adapters = AdapterSet(decoder.model)
    scheduler = Scheduler(
        decoder, adapters, metrics, on_death=lambda: None, max_rows=max_rows, pass_seconds=pass_seconds
    )
    if adapter:
        adapters.install(1, adapters.read(adapter))
    if started:
        scheduler.start()
    yield Run(scheduler, metrics)
    scheduler.stop()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_drafts_save_passes_and_no_token_differs(temperature: float) -> None:
    """The seed policy goes on with what it has read, as agents do."""
    prompts = [[*REPEATED, number + 10] for number in range(6)] + [REPEATED]
    answers, passes = [], []
    for pass_seconds in ([], FREE):
        with running(SEED_POLICY, pass_seconds, started=False) as run:
            waits = [
                begin(run.scheduler, prompt, 60, seed=number, temperature=temperature)
                for number, prompt in enumerate(prompts)
            ]
            run.scheduler.start()  # with all of them, so that its passes are the same each time
            answers.append([wait() for wait in waits])
            passes.append(run.count("sage:batch_size_count"))
            accepted = run.count("vllm:spec_decode_num_accepted_tokens_total")
            assert (accepted > 0) == bool(pass_seconds)
            assert run.count("vllm:spec_decode_num_draft_tokens_total") >= accepted
    plain, drafted = answers
    assert [answer.ids for answer in drafted] == [answer.ids for answer in plain]
    for one, other in zip(drafted, plain, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert passes[1] < passes[0]


def test_logprobs_with_drafts_and_adapters_are_those_of_a_plain_pass(tmp_path: Path) -> None:
    """Half of the drafted tokens are rejected, and their keys overwritten."""
    model_dir = make_model_dir(tmp_path / "model")
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    prompts = [[number % (3 + row) % 2 for number in range(150)] for row in range(6)]
    with running(model_dir, FREE, adapter) as run:
        waits = [
            begin(run.scheduler, prompt, 40, row % 2, row, allowed_token_ids=(0, 1))
            for row, prompt in enumerate(prompts)
        ]
        answers = [wait() for wait in waits]
        drafted = run.count("vllm:spec_decode_num_draft_tokens_total")
        assert drafted > run.count("vllm:spec_decode_num_accepted_tokens_total") > 0
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = reference(model_dir, adapter if row % 2 else None, prompt, list(answer.ids))
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
        assert len(answer.ids) == 40


def test_sampled_tokens_follow_the_policys_distribution(tmp_path: Path) -> None:
    """Chi-square of the second token, which a draft proposes, over 1,500 seeds."""
    model_dir = make_model_dir(tmp_path, spread=0.12)
    prompt = random.Random(2).choices((3, 7, 11), k=150)  # all n-grams of the three
    with running(model_dir, FREE, max_rows=7) as run:  # more would have to gain more
        waits = [begin(run.scheduler, prompt, 3, seed=seed, allowed_token_ids=(3, 7, 11)) for seed in range(1500)]
        answers = [wait().ids[:2] for wait in waits]
        assert 100 < run.count("vllm:spec_decode_num_accepted_tokens_total") < 1400
    pairs = Counter(answers)
    for first in (3, 7, 11):
        seen = [pairs[(first, second)] for second in (3, 7, 11)]
        logits = [reference(model_dir, None, [*prompt, first], [second])[0] for second in (3, 7, 11)]
        expected = torch.softmax(torch.tensor(logits), 0) * sum(seen)
        chi_square = sum((count - mean) ** 2 / mean for count, mean in zip(seen, expected.tolist(), strict=True))
        assert chi_square < 13.8  # of two degrees of freedom: exceeded once in 1,000


def test_a_completion_ends_at_its_stop_token_and_its_length_within_a_draft() -> None:
    with running(SEED_POLICY, FREE) as run:
        whole = run.greedy(REPEATED, 40)
        assert (len(whole.ids), whole.finish) == (40, "length")
        for place in (11, 12, 13, 14):
            stop = whole.ids[place]
            cut = run.greedy(REPEATED, 40, stop)
            assert cut.ids == whole.ids[: whole.ids.index(stop) + 1]
            assert (cut.finish, cut.stop_token) == ("stop", stop)
            assert run.greedy(REPEATED, place).ids == whole.ids[:place]
        assert run.count("vllm:spec_decode_num_accepted_tokens_total") > 0


def test_a_draft_is_what_followed_the_last_three_tokens_before() -> None:
    drafter = LookupDrafter([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    assert drafter.draft(10) == [4, 5, 6, 9, 1, 2, 3]
    assert drafter.draft(2) == [4, 5]
    drafter.append(4)
    assert drafter.draft(2) == [5, 6]
    drafter.append(7)  # not as before
    assert drafter.draft(2) == []


def test_a_drafter_that_is_wrong_loses_confidence_and_regains_it_without_being_used() -> None:
    drafter = LookupDrafter([1, 2, 3, 4] * 3)
    assert drafter.confidence == 0.5
    for token in [1, 2, 3, 4] * 4:
        drafter.append(token)
    assert drafter.confidence > 0.8
    for token in (7, 1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3, 7):
        drafter.append(token)
    assert drafter.confidence < 0.7


def test_no_more_is_drafted_than_the_time_of_a_pass_pays_for() -> None:
    linear = [float(rows) for rows in range(1, 65)]
    assert draft_lengths([0.99], [15], linear) == [0]
    assert draft_lengths([0.9], [15], FREE) == [15]
    assert draft_lengths([0.9], [2], FREE) == [2]
    slow_to_start = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert draft_lengths([0.5], [5], slow_to_start) == [0]  # at most 2 tokens for twice the time
    assert draft_lengths([0.9], [5], slow_to_start) == [5]
    assert draft_lengths([0.9] * 8, [5] * 8, slow_to_start) == [0] * 8  # no pass of so many rows was timed


def test_drafts_of_many_rows_have_to_gain_more() -> None:
    """A fourth of the rows with 0.9 more tokens each: 22 % more for nothing."""
    for rows, drafted in ((4, 1), (8, 0), (16, 0)):
        fourth = [int(row < rows // 4) for row in range(rows)]
        assert sum(draft_lengths([0.9] * rows, fourth, FREE)) == drafted
    assert draft_lengths([0.9] * 8, [1] * 8, FREE) == [1] * 8  # 90 % more


def test_passes_are_timed_for_up_to_32_rows(tmp_path: Path) -> None:
    seconds = Decoder(load_model(make_model_dir(tmp_path), "cpu", torch.float32), 64).pass_seconds()
    assert len(seconds) == 32
    assert 0 < seconds[0] <= seconds[31]
