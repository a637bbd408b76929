"""The hours of a run of practice: what each stage may take, and that an attempt that was killed used them up."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from app.base.run_settings import MIN_SCENARIOS
from trainer.learning.batch import Sample
from trainer.runs.hours import Hours, Sheet
from trainer.runs.practice import Demonstrations, collected_demonstrations

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_used_is_kept_between_attempts_also_of_one_that_was_killed(tmp_path: Path, clock: Clock) -> None:
    killed = Hours(tmp_path, 1.0, clock=clock)
    with suppress(KeyboardInterrupt), killed.stage("supervised"):
        clock.now += 600
        raise KeyboardInterrupt
    dead = Hours(tmp_path, 1.0, clock=clock)
    running = dead.stage("supervised")
    running.__enter__()  # and never left, as by SIGKILL
    clock.now += 300
    dead.note()
    clock.now += 4
    dead.note()
    again = Hours(tmp_path, 1.0, clock=clock)
    assert (again.used, again.share, again.sheet.spent) == (900, 0.25, {"supervised": 900})


def test_time_between_attempts_does_not_count(tmp_path: Path, clock: Clock) -> None:
    hours = Hours(tmp_path, 1.0, clock=clock)
    with hours.stage("samples"):
        clock.now += 10
    clock.now += 5 * HOUR
    with Hours(tmp_path, 1.0, clock=clock).stage("demonstrations"):
        clock.now += 20
    assert Hours(tmp_path, 1.0, clock=clock).used == 30


def test_demonstrations_take_six_hundredths_of_the_hours_at_most(tmp_path: Path, clock: Clock) -> None:
    with Hours(tmp_path, 1.0, clock=clock).stage("demonstrations"):
        clock.now += 100
    hours = Hours(tmp_path, 1.0, clock=clock)
    with hours.stage("demonstrations"):
        clock.now += 115
        assert hours.is_left_for_demonstrations()
        clock.now += 2
        assert not hours.is_left_for_demonstrations()


def test_supervised_steps_are_as_many_as_there_is_time_for_and_the_number_is_kept(
    tmp_path: Path, clock: Clock
) -> None:
    """2,160 s are the share of an hour: after 20 s there is time for 214 more of 10 s, if the data has so many."""
    hours = Hours(tmp_path, 1.0, clock=clock)
    hours.sheet.step_seconds = [60.0, 10.0, 10.0, 9.0]  # the first loads the model
    with hours.stage("supervised"):
        clock.now += 20
        assert hours.decide_steps(1000) == 4 + 214
        clock.now += 500
    assert Hours(tmp_path, 1.0, clock=clock).decide_steps(1000) == 218
    few = Hours(tmp_path / "few", 1.0, clock=clock)
    few.sheet.step_seconds = [1.0, 1.0]
    assert few.decide_steps(7) == 7


def test_rollouts_leave_the_exam_the_time_that_it_takes_by_their_own_speed(tmp_path: Path, clock: Clock) -> None:
    """A task takes 1 s. The exam gets 9 minutes, 90 scenarios of 6 tasks, and the guard a tenth, 60."""
    hours = Hours(tmp_path, 1.0, clock=clock)
    with hours.stage("rollouts"):
        assert hours.is_left_for_round(200)
        hours.add_round(96, 96.0, 120.0)
        clock.now += HOUR - (90 + 60) * 6 - 121
        assert hours.is_left_for_round(200)
        assert hours.rounds_left(200) == 1
        clock.now += 2
        assert not hours.is_left_for_round(200)
        assert hours.is_left_for_round(30), "a smaller exam takes less"
    assert (hours.decide_exam(200), hours.sheet.guard) == (90, 60)
    assert Hours(tmp_path, 1.0, clock=clock).decide_exam(200) == 90


def test_where_serving_samples_the_exam_looks_twice(tmp_path: Path, clock: Clock) -> None:
    hours = Hours(tmp_path, 1.0, looks=2, clock=clock)
    with hours.stage("rollouts"):
        hours.add_round(96, 96.0, 120.0)
    assert (hours.decide_exam(200), hours.sheet.guard) == (45, 60)


def test_an_exam_has_the_fewest_scenarios_that_decide_or_does_not_begin(tmp_path: Path, clock: Clock) -> None:
    """A task takes 10 s, the smallest exam 1,800 s: with less than half of that it does not begin."""
    for left, scenarios in ((1000, MIN_SCENARIOS), (800, 0), (-5, 0)):
        hours = Hours(tmp_path / f"{left}", 1.0, clock=clock)
        with hours.stage("rollouts"):
            hours.add_round(10, 100.0, 100.0)
            clock.now += HOUR - left
        assert hours.decide_exam(200) == scenarios


def test_demonstrations_are_read_again_until_they_are_taught_and_counted_after_that(tmp_path: Path) -> None:
    sample = Sample((1, 2), (False, True))
    some = Demonstrations([sample], 1, 2, {"the task failed": 1})
    for name in ("0", "1"):
        (tmp_path / f"{name}.msgpack").write_bytes(msgspec.msgpack.encode(some))
    assert collected_demonstrations(tmp_path, Sheet()) is None
    sheet = Sheet(collected=True, demonstrations=2, tried=4, dropped={"the task failed": 2})
    assert collected_demonstrations(tmp_path, sheet) == Demonstrations([sample] * 2, 2, 4, {"the task failed": 2})
    sheet.taught = "hash"
    assert collected_demonstrations(tmp_path, sheet) == Demonstrations([], 2, 4, {"the task failed": 2})
