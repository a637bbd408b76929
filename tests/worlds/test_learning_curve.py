"""The learning curve: sums over steps, each counted once, also when a kill repeats some."""

from pathlib import Path

import pytest

from trainer.worlds.base_adapter.training import StepJournal, StepRecord, point_at, read_steps


def record(step: int, loss: float = 1.0) -> StepRecord:
    return StepRecord(step=step, examples=2, tokens=100, learned_tokens=40, cpu_seconds=30.0, loss=loss)


def test_a_repeated_step_counts_once_and_a_line_cut_short_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    before = StepJournal(file)
    for step in (1, 2, 3):
        before.add(record(step))
    with file.open("ab") as opened:
        opened.write(b'{"step": 4, "exam')  # killed while it wrote
    resumed = StepJournal(file)  # from a checkpoint at step 2
    resumed.add(record(3, loss=0.5))
    resumed.add(record(4))
    assert read_steps(file) == [record(1), record(2), record(3, loss=0.5), record(4)]


def test_a_point_sums_from_the_start_and_averages_the_loss_since_the_last() -> None:
    records = [record(1, 4.0), record(2, 3.0), record(3, 2.0), record(4, 1.0), record(5, 9.0)]
    point = point_at(4, records, since=2, held_out_loss=1.25, adapter="abc", device="CPU")
    assert (point.examples, point.tokens, point.learned_tokens) == (8, 400, 160)
    assert point.cpu_minutes == pytest.approx(2.0)
    assert point.loss == pytest.approx(1.5)
    assert point.held_out_loss == 1.25
