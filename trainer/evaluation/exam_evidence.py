"""What the tasks of an exam could not show, in words for the evidence of a release."""

import msgspec

from app.records import Json
from app.run_settings import MIN_JUDGED, MIN_KINDS
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
        "without a record that solved it by today's operations",
        "asked for what was never recorded",
        "have more tasks scored",
    ),
    "staging": _Ground("without a check", advice=_CHECKS),
    "live": _Ground("without a check or a record that only read", "tried to write", _CHECKS),
}


class UndecidedError(Exception):
    """The results of an exam are too few to decide by."""

    def __init__(self, results: PairedResults, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.evaluation: dict[str, Json] = results.settings
        self.advice = advice or _advice(results)  # what would let them decide


def check_decidable(results: PairedResults, coverage: float, min_scenarios: int) -> None:
    """Raises UndecidedError. `coverage` is the share of scenarios that must be known of all models."""
    known, scenarios = results.settings["coverage"], len({each.scenario for each in results.candidate})
    also = "" if results.reference is None else ", also of the reference"
    if known < coverage:
        share = f"the results of {known:.0%} of the scenarios are known{also}, {coverage:.0%} are needed"
        raise UndecidedError(results, f"{share} (exam_coverage): the others {_ground(results).unknown}")
    if scenarios < min_scenarios:
        number = f"the exam has {scenarios} scenarios to examine on{also}, {min_scenarios} are needed"
        raise UndecidedError(results, number + left_out(results))
    exam = results.settings.get("exam", {})
    every = exam.get("kinds", 0)
    tried = every - exam.get("kinds_left_out", 0)
    if tried < MIN_JUDGED * every:
        number = f"the exam can be tried on tasks of {tried} of its {every} kinds, {MIN_JUDGED:.0%} are needed"
        raise UndecidedError(results, number + left_out(results))
    known_kinds = len({each.template for each in results.candidate})
    if exam and known_kinds < MIN_KINDS:
        number = f"the exam has tasks of {known_kinds} kinds to examine on{also}, {MIN_KINDS} are needed"
        raise UndecidedError(results, number + left_out(results))
    if exam and not _any_solved(results):
        nobody = "no release solved a task of the exam, so it compares nothing"
        raise UndecidedError(results, nobody + left_out(results), "mend the checks if nothing can pass them")


def left_out(results: PairedResults) -> str:
    """The end of a sentence that says which tasks of the exam were left out; empty if none was."""
    exam = results.settings.get("exam", {})
    unjudged, idle = exam.get("tasks_left_out", 0), exam.get("true_whatever_happens", 0)
    parts = [f"{unjudged} {_ground(results).unjudged}"] if unjudged else []
    if idle:
        parts.append(f"{idle} that doing nothing solves (checks that are true whatever happens)")
    return f"; tasks left out: {', '.join(parts)}" if parts else ""


def _any_solved(results: PairedResults) -> bool:
    return any(each.success for each in (*results.candidate, *results.incumbent, *(results.reference or ())))


def _advice(results: PairedResults) -> str:
    if results.settings.get("exam", {}).get("true_whatever_happens"):
        return f"mend the checks that pass when nothing is done, {_ground(results).advice}"
    return _ground(results).advice


def _ground(results: PairedResults) -> _Ground:
    exam = results.settings.get("exam")
    return _GROUNDS[exam["on"]] if exam else _PRACTICE
