"""What does not count about a canary: kinds of tasks that chance did not share."""

from datetime import timedelta

import numpy as np
import pytest

from app.releases.canary import CanaryAction, CanaryRules, vanished
from app.releases.trials_store import CanaryShare, CanaryTask, UsualKind
from tests.support.trials import START, Arm, judged, trial

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
    ended = judged(few, OVER)
    assert (ended.action, ended.not_counted.all_of) == (CanaryAction.STOP, "scores"), "no other kind has any"


OWN, OTHER = (slice(start, None, 2) for start in (0, 1))  # of the tasks of a trial
SOME_SCORED = [*trial(Arm(), Arm(), 5)[OWN], *trial(Arm(scored=False), Arm(scored=False), 200)]


@pytest.mark.parametrize(
    ("tasks", "share", "reason"),
    [
        (trial(Arm(0.9), Arm(0.9), 200)[OWN], 50, "not comparable, tasks came from one release"),
        (trial(Arm(0.0, errors=1.0), Arm(), 200)[OWN], 100, "chance left no errors of both"),
        (trial(Arm(), Arm(), 1)[OTHER], 50, "chance left no errors of both"),
        (SOME_SCORED, 50, "chance left no reward of both"),
    ],
    ids=["tasks of one release", "all tasks to the canary", "one task", "scores of one release"],
)
def test_what_nothing_can_be_compared_with_is_no_proof_at_the_end(
    tasks: list[CanaryTask], share: float, reason: str
) -> None:
    found = judged(tasks, OVER, [CanaryShare(share, START)])
    assert found.action is CanaryAction.STOP
    assert reason in found.reason


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


def test_tasks_that_their_check_could_not_score_make_no_constant_check_informative() -> None:
    """One in fifty of both releases fails before its check runs, and the check is always true."""
    tasks = [
        task._replace(reward=0.0, unscored=True, error=1.0) if place % 100 in (20, 71) else task
        for place, task in enumerate(trial(Arm(1.0, tokens=100), Arm(1.0), 1_500))
    ]
    found = judged(tasks)
    assert found.action is CanaryAction.WAIT
    assert found.not_counted.constant_checks == {"mail": 3_000}
    assert "every score is 1, and such scores show no loss" in found.reason
    assert judged([task._replace(unscored=False) for task in tasks]).action is CanaryAction.PROMOTE, "real zeros"


def test_kinds_whose_scores_are_all_the_same_do_not_thin_out_a_loss() -> None:
    trivial = trial(Arm(1.0, tokens=100), Arm(1.0), 1_800, "trivial")
    tasks = sorted([*trivial, *trial(Arm(0.6, tokens=100), Arm(0.7), 200)], key=lambda task: task.started_at)
    found = judged(tasks, CanaryRules(max_scored=9_999))
    assert found.action is CanaryAction.WAIT
    assert found.not_counted.constant_checks == {"trivial": 3_600}
    assert found.metrics["reward"].tasks == {"canary": 205, "baseline": 205}, "with the first ten"
    assert found.metrics["tokens"].tasks == {"canary": 2_000, "baseline": 2_000}


def test_a_kind_that_was_constant_before_counts_once_a_score_differs_with_all_its_scores() -> None:
    usual = {"mail": UsualKind(40, 40, 40.0, 0.0, scores=40, same=1.0)}
    alike = judged(trial(Arm(1.0), Arm(1.0), 100), OVER, usual=usual)
    assert alike.metrics["reward"].tasks == {"canary": 0, "baseline": 0}
    assert (alike.action, alike.reason.partition(":")[0]) == (
        CanaryAction.PROMOTE,
        "the scores of each kind are all the same, and such scores show no loss (send feedback), but no more "
        "errors beyond 0.2, and it passed the gate",
    )
    worse = judged(trial(Arm(0.8), Arm(1.0), 100), usual=usual)
    assert (worse.action, worse.not_counted.constant_checks) == (CanaryAction.REJECT, {})
    assert worse.metrics["reward"].tasks == {"canary": 100, "baseline": 100}


def test_at_the_end_scores_that_are_all_the_same_are_named_and_errors_decide() -> None:
    alike = judged(trial(Arm(1.0), Arm(1.0), 100), OVER)
    assert alike.action is CanaryAction.PROMOTE
    assert alike.reason.startswith("every score is 1, and such scores show no loss (send feedback), but no more")
    failing = judged(trial(Arm(1.0, errors=0.3), Arm(1.0, errors=0.1), 100), OVER)
    assert failing.action is CanaryAction.STOP


@pytest.mark.slow
def test_equal_releases_are_as_rarely_rejected_where_kinds_wait_for_a_score_that_differs() -> None:
    """By simulation, at every tenth task: kinds of which most are always or nearly always solved."""
    rng, wrong, runs = np.random.default_rng(3), 0, 100
    rates = rng.choice([1.0, 0.97, 0.9, 0.5], 12, p=[0.4, 0.3, 0.2, 0.1])
    for _ in range(runs):
        kinds, own = rng.integers(12, size=600), rng.random(600) < 0.5
        tasks = [
            CanaryTask(f"kind {kind}", bool(on), START + timedelta(minutes=at), score, START, 0.0, 2, 300)
            for at, (kind, on) in enumerate(zip(kinds, own, strict=True))
            for score in [float(rng.random() < rates[kind])]
        ]
        looks = (judged(tasks[:count]).action for count in range(20, 601, 20))
        wrong += any(action is not CanaryAction.WAIT for action in looks)
    assert wrong / runs <= 0.05, "1 % for each side"


def test_scenarios_that_did_not_come_again_are_named() -> None:
    usual = {name: UsualKind(9, 0, 0.0, 0.0) for name in ("mail", "buy", "instruction 0f", "instruction 1f")}
    assert vanished(usual, trial(Arm(), Arm(), 1)) == {"buy": 9}
    assert vanished(usual, []) == {}, "nothing came yet"


@pytest.mark.parametrize("count", [1, 5, 10])
def test_what_chance_may_well_have_done_counts(count: int) -> None:
    tasks = [task._replace(started_at=START) for task in trial(Arm(), Arm(), count) if task.on_canary]
    assert judged(tasks).not_counted.one_sided_tasks == {}
