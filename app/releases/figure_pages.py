"""The evidence about a release as its row has it, and the figures and the verdict that it gives beside another
one.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Literal, TypeAlias

import msgspec
from litestar import Response
from msgspec.structs import astuple

from app.base.values import Json
from app.db.results import TaskSums
from app.releases import statistics
from app.releases.canary import CanaryAction, CanaryDecision, CanaryStatus, UncountedTraffic
from app.releases.reference import read_part
from app.releases.statistics import Interval
from app.releases.watch import NotCounted, WatchDecision
from app.skills.routes import ScenarioValue, SkillValue
from app.web import formats
from app.web.charts import DrawnInterval, draw_intervals
from app.web.formats import csv_file

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


class NamedRelease(msgspec.Struct, frozen=True):
    number: int
    model: str = ""


class ExamFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one release on an exam: shares in percent, turns and tokens of a task."""

    tasks: int
    scenarios: int
    tgc: Interval
    sgc: Interval
    turns: Interval
    tokens: Interval
    skill_usage: Interval | None = None


class ExamDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Of two releases on the same scenarios."""

    scenarios: int
    tgc: Interval
    sgc: Interval
    turns: Interval
    tokens: Interval
    gained: int
    lost: int


class ComparedExam(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate compared."""

    compared_with: NamedRelease
    candidate: ExamFigures
    incumbent: ExamFigures
    difference: ExamDifference
    environment: str = ""
    sgc_lower_bound: float | None = None
    warnings: list[str] = []


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """The state is watching, rolled back, kept or ended."""

    state: str
    reason: str = ""
    baseline: NamedRelease | None = None
    since: datetime | None = None
    decision: WatchDecision | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is missing, or that an earlier version wrote in another form, is None."""

    verdict: str = ""
    reason: str = ""
    next: str = ""
    waiting: str = ""
    exam: ComparedExam | None = None
    canary: CanaryStatus | None = None
    watch: Watched | None = None


def read_evidence(stored: dict[str, Json] | None) -> Evidence:
    """
    >>> read_evidence(None).reason, read_evidence({"reason": "the prompt changed", "canary": {}}).canary
    ('', None)
    """
    known = stored or {}
    texts = {name: str(known.get(name) or "") for name in ("verdict", "reason", "next", "waiting")}
    return Evidence(
        **texts,
        exam=read_part(known, ComparedExam),
        canary=read_part(known.get("canary"), CanaryStatus),
        watch=read_part(known.get("watch"), Watched),
    )


def exam_figures(stored: dict[str, Json]) -> ExamFigures | None:
    """None if some are missing."""
    return read_part(stored, ExamFigures)


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
    on = f"{exam.difference.scenarios:,} scenarios"
    rows = []
    for name, label in _EXAM.items():
        before, now, difference = (
            getattr(each, name) for each in (exam.incumbent, exam.candidate, exam.difference)
        )
        rows.append(_row(name, label, before, now, difference, on))
    return rows


def canary_rows(decision: CanaryDecision) -> list[FigureRow]:
    """With the bounds of the end, once there is one."""
    rows = []
    for name, metric in _known(decision.metrics):
        on = f"{metric.tasks['canary']:,} and {metric.tasks['baseline']:,} tasks"
        difference = metric.at_the_end or metric.difference
        rows.append(_row(name, _LIVE[name], metric.baseline, metric.canary, difference, on))
    return rows


def watch_rows(decision: WatchDecision) -> list[FigureRow]:
    return [
        _row(name, _LIVE[name], metric.before, metric.now, metric.difference, f"{metric.pairs:,} pairs of tasks")
        for name, metric in _known(decision.metrics)
    ]


def uncounted(found: UncountedTraffic | NotCounted) -> dict[str, list[str]]:
    """What shows nothing about a release: the kinds of tasks by the reason.

    >>> uncounted(UncountedTraffic(constant_checks={"mail": 1200, "buy": 40}))
    {'scores that are all the same in their kind': ['mail (1,200)', 'buy (40)']}
    """
    known = {label: getattr(found, name, {}) for name, label in _UNCOUNTED.items()}
    return {
        label: [
            f"{kind} ({number if isinstance(number, int) else sum(number.values()):,})"  # of both releases
            for kind, number in kinds.items()
        ]
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
            statistics.one_look_difference(other, one, 1.0 if name == "reward" else inf),
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
    because = f"it solves {points} ({sgc.low:+.1f} to {sgc.high:+.1f}){fewer}"
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


def _text(found: Measured) -> str:
    if isinstance(found, Interval):
        return f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"
    return formats.score(found)


def figures_file(name: str, before: int, now: int, rows: Sequence[FigureRow]) -> Response[str]:
    """Two releases, by their numbers, measure by measure."""
    columns = end_names(f"release_{before}", f"release_{now}", "difference")
    content = [
        [row.name, *ends(row.measured[0]), *ends(row.measured[1]), *ends(row.difference), row.on] for row in rows
    ]
    return csv_file(name, ["measure", *columns, "from"], content)


def value_file(name: str, value: SkillValue) -> Response[str]:
    """What a skill is worth in all, then by scenario. The bounds `any_time` hold however often somebody looks."""
    tasks = ["tasks_with", "score_with", "tasks_without", "score_without"]
    header = ["scenario", *tasks, *end_names("difference", "any_time")]
    parts: list[tuple[str | None, SkillValue | ScenarioValue]] = [("all", value)]
    parts += [(each.scenario, each) for each in value.scenarios]
    content = [
        [
            scenario,
            *astuple(each.offered),
            *astuple(each.withheld),
            *ends(each.one_look.score),
            *ends(each.difference),
        ]
        for scenario, each in parts
    ]
    return csv_file(name, header, content)


def end_names(*measures: str) -> list[str]:
    """The names of the columns that `ends` fills."""
    return [f"{each}{end}" for each in measures for end in ("", "_low", "_high")]


def ends(found: Measured) -> tuple[float | None, float | None, float | None]:
    """A mean and its bounds, as far as they are known."""
    return (found.mean, found.low, found.high) if isinstance(found, Interval) else (found, None, None)
