"""What the tasks of an exam could not show, in words for the evidence of a release."""

import msgspec

from trainer.evaluation.paired import PairedResults


class _Ground(msgspec.Struct, frozen=True):
    """The words for what trials run on."""

    unjudged: str = "that cannot be judged"  # tasks
    unknown: str = "have unknown results"  # scenarios
    advice: str = "name an environment with more scenarios"


_CHECKS = "make an exam with more tasks that have a check (POST /v1/exams)"
_PRACTICE = _Ground()
_GROUNDS = {
    "recorded": _Ground(
        "without a record that solved it", "asked for what was never recorded", "have more tasks scored"
    ),
    "staging": _Ground("without a check", advice=_CHECKS),
    "live": _Ground("without a check or a record that only read", "tried to write", _CHECKS),
}


def why_undecided(results: PairedResults, coverage: float, min_scenarios: int) -> str:
    """Why they decide nothing; empty if they do. `coverage` is the share of scenarios that must be known."""
    known, scenarios = results.settings["coverage"], len({each.scenario for each in results.candidate})
    if known < coverage:
        return (
            f"the results of {known:.0%} of the scenarios are known, {coverage:.0%} are needed (exam_coverage): "
            f"the others {_ground(results).unknown}"
        )
    if scenarios < min_scenarios:
        return f"the exam has {scenarios} scenarios to examine on, {min_scenarios} are needed{left_out(results)}"
    return ""


def left_out(results: PairedResults) -> str:
    """The end of a sentence that says which tasks of the exam were left out; empty if none was."""
    exam = results.settings.get("exam", {})
    unjudged, idle = exam.get("tasks_left_out", 0), exam.get("true_whatever_happens", 0)
    parts = [f"{unjudged} {_ground(results).unjudged}"] if unjudged else []
    if idle:
        parts.append(f"{idle} that doing nothing solves (checks that are true whatever happens)")
    return f"; tasks left out: {', '.join(parts)}" if parts else ""


def advice(results: PairedResults) -> str:
    """What would let them decide."""
    if results.settings.get("exam", {}).get("true_whatever_happens"):
        return f"mend the checks that pass when nothing is done, {_ground(results).advice}"
    return _ground(results).advice


def _ground(results: PairedResults) -> _Ground:
    exam = results.settings.get("exam")
    return _GROUNDS[exam["on"]] if exam else _PRACTICE
