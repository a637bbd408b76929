"""The metrics of a step: what nobody can tell is neither a success nor a failure."""

from trainer.evaluation.metrics import TaskResult
from trainer.runs.rollout import experience_metrics, task_metrics, warnings_of


def result(*, success: bool = False, known: bool = True, wrote: int = 0) -> TaskResult:
    return TaskResult(
        scenario="a",
        template="a",
        success=success,
        known=known,
        turns=1,
        tokens=1,
        stop="completed",
        offered=0,
        used=0,
        wrote=wrote,
    )


def test_the_share_of_successes_is_of_what_is_known() -> None:
    metrics = task_metrics([result(success=True, wrote=1), result(known=False), result(known=False, wrote=1)])
    assert metrics == {"success": 1.0, "unknown": 2, "write_rate": 2 / 3}
    [warning] = warnings_of(metrics)
    assert warning.startswith("2 rollouts were left out: it cannot be told whether they succeeded")
    assert task_metrics([result(success=True), result()]) == {"success": 0.5, "write_rate": 0.0}


def test_a_step_of_which_nothing_is_known_has_no_share_of_successes() -> None:
    assert task_metrics([result(known=False, wrote=1)]) == {"unknown": 1, "write_rate": 1.0}
    assert experience_metrics([]) == {}
