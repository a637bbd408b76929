"""What does not count about a canary: kinds of tasks that chance did not share."""

import pytest

from app.db.canaries import UsualKind
from app.release.canary_decision import CanaryAction, CanaryRules
from app.release.canary_traffic import vanished
from tests.trials import START, Arm, judged, trial

OVER = CanaryRules(expired="its time is over", passed_gate=True)


def test_a_kind_that_only_one_release_had_is_named_and_does_not_count() -> None:
    shared = trial(Arm(0.5), Arm(0.5), 100)
    easy = [task for task in trial(Arm(1.0), Arm(1.0), 400, "other") if task.on_canary]
    found = judged([*shared, *easy])
    assert found.action is CanaryAction.WAIT
    assert found.not_counted.one_sided_tasks == {"other": {"canary": 400, "baseline": 0}}
    assert found.metrics["reward"].tasks == {"canary": 100, "baseline": 100}
    assert judged([*shared, *trial(Arm(1.0), Arm(0.0), 200, "other")]).action is CanaryAction.PROMOTE


def test_scores_that_one_release_got_more_often_do_not_count() -> None:
    scored = trial(Arm(0.9), Arm(0.3), 200)
    few = [
        task if task.on_canary or place % 20 == 1 else task._replace(reward=None)
        for place, task in enumerate(scored)
    ]
    found = judged(few)
    assert found.not_counted.one_sided_scores == {"mail": {"canary": 200, "baseline": 20}}
    assert found.metrics["reward"].difference is None
    assert found.metrics["errors"].tasks == {"canary": 200, "baseline": 200}


def test_scores_that_favour_one_release_in_all_kinds_a_little_leave_it_undecided() -> None:
    kinds = [trial(Arm(0.5), Arm(0.5), 12, f"kind {number}") for number in range(30)]
    tasks = [
        task if task.on_canary or place % 3 == 1 else task._replace(reward=None)
        for each in kinds
        for place, task in enumerate(each)
    ]
    found = judged(tasks, OVER)
    assert (found.not_counted.one_sided_scores, found.not_counted.all_of) == ({}, "scores")
    assert (found.action, found.reason[:22]) == (CanaryAction.STOP, "not comparable, scores")
    assert judged(trial(Arm(0.5), Arm(0.5), 360), OVER).action is CanaryAction.PROMOTE


def test_scenarios_that_did_not_come_again_are_named() -> None:
    usual = {name: UsualKind(9, 0, 0.0, 0.0) for name in ("mail", "buy", "instruction 0f", "instruction 1f")}
    assert vanished(usual, trial(Arm(), Arm(), 1)) == {"buy": 9}
    assert vanished(usual, []) == {}, "nothing came yet"


@pytest.mark.parametrize("count", [1, 5, 10])
def test_what_chance_may_well_have_done_counts(count: int) -> None:
    tasks = [task._replace(started_at=START) for task in trial(Arm(), Arm(), count) if task.on_canary]
    assert judged(tasks).not_counted.one_sided_tasks == {}
