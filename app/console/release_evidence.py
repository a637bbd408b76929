"""The evidence about a release, as its row has it: what gate, canary and watch have shown."""

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from app.base.values import Json
from app.release.canary_trial import CanaryStatus
from app.release.confidence_sequence import Interval
from app.release.watch_decision import WatchDecision

T = TypeVar("T")


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
        exam=_part(known, ComparedExam),
        canary=_part(known.get("canary"), CanaryStatus),
        watch=_part(known.get("watch"), Watched),
    )


def exam_figures(stored: dict[str, Json]) -> ExamFigures | None:
    """None if some are missing."""
    return _part(stored, ExamFigures)


def _part(stored: Any, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(stored, kind)
    except msgspec.ValidationError:
        return None
