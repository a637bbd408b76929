"""How a release compares with another one: figures of an exam, a canary or a watch, and a verdict. Pure."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Literal, TypeAlias

import msgspec

from app.console.release_evidence import ComparedExam, Evidence
from app.db.results import TaskSums
from app.release import one_look
from app.release.canary_decision import CanaryAction, CanaryDecision
from app.release.canary_metrics import MetricComparison
from app.release.canary_traffic import UncountedTraffic
from app.release.confidence_sequence import Interval
from app.release.watch_decision import NotCounted, WatchDecision
from app.web import formats
from app.web.charts import DrawnInterval, draw_intervals

Word = Literal["better", "worse", "as good", "undecided"]
Measured: TypeAlias = Interval | float | None

_EXAM = {
    "sgc": "Scenarios solved, %",
    "tgc": "Tasks solved, %",
    "turns": "Turns of a task",
    "tokens": "Tokens of a task",
}
_LIVE = {"reward": "Score", "errors": "Share of errors", "turns": "Turns of a task", "tokens": "Tokens of a task"}
_MORE_IS_BETTER = ("sgc", "tgc", "reward")
_UNCOUNTED = {
    "constant_checks": "scores that are all the same in their kind",
    "one_sided_scores": "kinds of which one release had too many scores",
    "one_sided_tasks": "kinds of which one release had too many tasks",
    "vanished": "scenarios that did not come again",
    "other_traffic": "new scenarios",
}


class FigureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of two releases, as text and `measured`. `good`: the difference is for the better; None if it is
    not certain.
    """

    name: str
    before: str
    now: str
    measured: tuple[Measured, Measured]
    difference: Interval | None
    drawn: DrawnInterval | None
    good: bool | None
    on: str  # how much it rests on


class ReleaseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`against` is the number of the other release, `by` what has shown it."""

    word: Word
    against: int
    because: str
    by: str

    @property
    def text(self) -> str:
        """
        >>> ReleaseVerdict(word="as good", against=6, because="", by="exam").text
        'As good as release 6'
        """
        if self.word == "undecided":
            return f"Neither better nor worse than release {self.against}, as far as is known"
        return f"{self.word.capitalize()} {'as' if self.word == 'as good' else 'than'} release {self.against}"


def exam_rows(exam: ComparedExam) -> list[FigureRow]:
    scenarios = f"{exam.difference.scenarios:,} scenarios"
    return [
        _row(
            name,
            label,
            getattr(exam.incumbent, name),
            getattr(exam.candidate, name),
            getattr(exam.difference, name),
            scenarios,
        )
        for name, label in _EXAM.items()
    ]


def canary_rows(decision: CanaryDecision) -> list[FigureRow]:
    """With the bounds of the end, once there is one."""
    return [
        _row(
            name,
            _LIVE[name],
            metric.baseline,
            metric.canary,
            metric.at_the_end or metric.difference,
            _tasks(metric),
        )
        for name, metric in _known(decision.metrics)
    ]


def watch_rows(decision: WatchDecision) -> list[FigureRow]:
    return [
        _row(
            name,
            _LIVE[name],
            metric.before,
            metric.now,
            metric.difference,
            f"{metric.pairs:,} pairs of tasks",
        )
        for name, metric in _known(decision.metrics)
    ]


def uncounted(found: UncountedTraffic | NotCounted) -> dict[str, list[str]]:
    """What shows nothing about a release: the kinds of tasks by the reason.

    >>> uncounted(UncountedTraffic(constant_checks={"mail": 1200, "buy": 40}))
    {'scores that are all the same in their kind': ['mail (1,200)', 'buy (40)']}
    """
    known = {label: getattr(found, name, {}) for name, label in _UNCOUNTED.items()}
    return {
        label: [f"{kind} ({_sum(number):,})" for kind, number in kinds.items()]
        for label, kinds in known.items()
        if kinds
    }


def live_rows(before: TaskSums, now: TaskSums) -> list[FigureRow]:
    """Of what each served at its time."""
    names = (
        ("reward", before.score, now.score),
        ("turns", before.turns, now.turns),
        ("tokens", before.tokens, now.tokens),
    )
    return [
        _row(
            name,
            _LIVE[name],
            one.total / one.number if one.number else None,
            other.total / other.number if other.number else None,
            one_look.difference(other, one, 1.0 if name == "reward" else inf),
            f"{other.number:,} and {one.number:,} tasks",
        )
        for name, one, other in names
    ]


def verdict(evidence: Evidence) -> ReleaseVerdict | None:
    """By what is nearest to real work: the watch, then the time as a canary, then the exam."""
    return _by_watch(evidence) or _by_canary(evidence) or _by_exam(evidence)


def _by_watch(evidence: Evidence) -> ReleaseVerdict | None:
    watch = evidence.watch
    if watch is None or watch.baseline is None or watch.state not in ("rolled back", "kept"):
        return None
    word: Word = "worse" if watch.state == "rolled back" else "as good"
    because = f"its watch {watch.state.replace('rolled', 'rolled it')}: {watch.reason}" if watch.reason else ""
    if word == "as good" and (better := _by_canary(evidence) or _by_exam(evidence)) and better.word == "better":
        return better  # the watch only rules losses out
    return ReleaseVerdict(word=word, against=watch.baseline.number, because=because, by="watch")


def _by_canary(evidence: Evidence) -> ReleaseVerdict | None:
    canary = evidence.canary
    return None if canary is None else canary_verdict(canary.decision, canary.baseline.number)


def canary_verdict(decision: CanaryDecision, against: int) -> ReleaseVerdict:
    reward = decision.metrics["reward"].difference
    certain = reward is not None and reward.low > 0
    words: dict[CanaryAction, Word] = {
        CanaryAction.PROMOTE: "better" if certain else "as good",
        CanaryAction.REJECT: "worse",
    }
    word = words.get(decision.action, "undecided")
    return ReleaseVerdict(word=word, against=against, because=decision.reason, by="canary")


def _by_exam(evidence: Evidence) -> ReleaseVerdict | None:
    exam = evidence.exam
    if exam is None:
        return None
    sgc, tokens = exam.difference.sgc, exam.difference.tokens
    fewer = f", with {formats.count(-tokens.mean)} fewer tokens a task" if tokens.high < 0 else ""
    points = f"{abs(sgc.mean):.1f} points {'more' if sgc.mean >= 0 else 'fewer'} of the scenarios of the exam"
    because = f"it solves {points} ({_plain(sgc)}){fewer}"
    word: Word = "undecided"
    if sgc.low > 0:
        word = "better"
    elif sgc.high < 0:
        word = "worse"
    elif evidence.verdict == "promote":
        word = "as good"
    return ReleaseVerdict(word=word, against=exam.compared_with.number, because=because, by="exam")


def _row(
    name: str, label: str, before: Measured, now: Measured, difference: Interval | None, on: str
) -> FigureRow:
    return FigureRow(
        name=label,
        before=_text(before),
        now=_text(now),
        measured=(before, now),
        difference=difference,
        drawn=draw_intervals([difference])[0],
        good=_is_good(name, difference),
        on=on,
    )


def _is_good(name: str, difference: Interval | None) -> bool | None:
    """
    >>> _is_good("tokens", Interval(-3, -5, -1)), _is_good("sgc", Interval(-3, -5, -1)), _is_good("sgc", None)
    (True, False, None)
    """
    if difference is None or difference.low <= 0 <= difference.high:
        return None
    return (difference.low > 0) == (name in _MORE_IS_BETTER)


def _known(metrics: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return ((name, metrics[name]) for name in _LIVE if name in metrics)


def _tasks(metric: MetricComparison) -> str:
    return f"{metric.tasks['canary']:,} and {metric.tasks['baseline']:,} tasks"


def _sum(number: int | Mapping[str, int]) -> int:
    """Of both releases."""
    return number if isinstance(number, int) else sum(number.values())


def _text(found: Measured) -> str:
    if isinstance(found, Interval):
        return f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"
    return formats.score(found)


def _plain(found: Interval) -> str:
    return f"{found.low:+.1f} to {found.high:+.1f}"
