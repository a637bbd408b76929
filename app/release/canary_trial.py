"""The trial of a canary: what it and the active release did since both serve, and how the two compare."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.db import canaries, queries, releases, tables
from app.projects import store as projects
from app.release.canary_decision import CanaryDecision, CanaryRules, decide, race
from app.release.confidence_sequence import Interval
from app.release.reference import possible_loss

_DEFAULT_COST = canaries.TypicalCost(12, 2_048)  # of a project without finished tasks
_RULES = CanaryRules()
_FEW_DAYS, _MOST_PARTS = 3, 14


class CanaryBaseline(msgspec.Struct, frozen=True):
    """The active release that a canary is compared with."""

    number: int
    model: str


class RaceMoment(NamedTuple):
    """The differences of a canary to its baseline, as they were known then. None before both had tasks."""

    at: datetime
    reward: Interval | None
    errors: Interval | None


class CanaryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a canary with its baseline, since both serve."""

    since: datetime
    baseline: CanaryBaseline
    shares: Sequence[canaries.CanaryShare]  # of the new tasks, oldest first
    decision: CanaryDecision

    def check(self, canary: tables.Release, active: tables.Release | None) -> None:
        """Raises ConflictError if the canary has ended since, or another release was activated."""
        canaries.check_is_canary(canary)
        if active is None or active.number != self.baseline.number:
            raise ConflictError(
                f"release {canary.number} was compared with release {self.baseline.number}, no longer active"
            )


async def evaluate(session: AsyncSession, release: tables.Release, rules: CanaryRules = _RULES) -> CanaryStatus:
    """Compare it with the active release. Raises ConflictError if it is not a canary."""
    return await (await _read_trial(session, release, rules)).status()


async def evaluate_over_time(
    session: AsyncSession, release: tables.Release
) -> tuple[CanaryStatus, Sequence[RaceMoment]]:
    """As `evaluate`, with what was known at the end of each day of the trial, or of each part of a short one."""
    trial = await _read_trial(session, release, _RULES)
    return await trial.status(), await trial.race(await queries.now(session))


async def past_race(
    session: AsyncSession, release: tables.Release, status: CanaryStatus, ended: datetime
) -> Sequence[RaceMoment]:
    """What was known during a trial that is over, by those of its tasks that are kept."""
    baseline = await releases.numbered(session, release.project_id, status.baseline.number)
    most = _RULES.max_compared
    tasks = await canaries.ended_tasks(session, release, baseline, status.since, most, ended)
    usual = await canaries.usual_kinds(session, release.project_id, status.since)
    trial = _Trial(status.since, status.baseline, status.shares, tasks, usual, _DEFAULT_COST, _RULES)
    return await trial.race(ended)


async def _read_trial(session: AsyncSession, release: tables.Release, rules: CanaryRules) -> "_Trial":
    canaries.check_is_canary(release)
    active = await releases.active(session, release.project_id)
    rules, until = await _rules_for(session, release, active, rules)
    began = await canaries.shared_since(session, release, active)
    return _Trial(
        began,
        CanaryBaseline(active.number, active.model),
        canaries.shares_of(release),
        await canaries.ended_tasks(session, release, active, began, rules.max_compared, until),
        await canaries.usual_kinds(session, release.project_id, began),
        await canaries.typical_cost(session, release.project_id, began) or _DEFAULT_COST,
        rules,
    )


@dataclass(frozen=True)
class _Trial:
    """What a comparison rests on. Comparing 20,000 tasks takes a quarter of a second: a thread does it."""

    began: datetime
    baseline: CanaryBaseline
    shares: Sequence[canaries.CanaryShare]
    tasks: Sequence[canaries.CanaryTask]
    usual: Mapping[str, canaries.UsualKind]
    typical: canaries.TypicalCost
    rules: CanaryRules

    async def status(self) -> CanaryStatus:
        decision = await asyncio.to_thread(decide, self.tasks, self.shares, self.usual, self.typical, self.rules)
        return CanaryStatus(since=self.began, baseline=self.baseline, shares=self.shares, decision=decision)

    async def race(self, now: datetime) -> Sequence[RaceMoment]:
        moments = race_moments(self.began, now)
        found = await asyncio.to_thread(race, self.tasks, self.shares, self.usual, moments, self.rules)
        return [RaceMoment(*each) for each in zip(moments, found["reward"], found["errors"], strict=True)]


def race_moments(began: datetime, now: datetime) -> list[datetime]:
    """The ends of at most 14 equal parts of the time, and days where it has some.

    >>> day = datetime(2026, 1, 1)
    >>> [each.day for each in race_moments(day, datetime(2026, 1, 5))]
    [2, 3, 4, 5]
    >>> [each.hour for each in race_moments(day, datetime(2026, 1, 1, 12))]
    [2, 4, 6, 8, 10, 12]
    """
    days = (now - began) / timedelta(days=1)
    parts = 6 if days < _FEW_DAYS else min(_MOST_PARTS, ceil(days))
    return [began + (now - began) * (part + 1) / parts for part in range(parts)]


async def _rules_for(
    session: AsyncSession, release: tables.Release, active: tables.Release, rules: CanaryRules
) -> tuple[CanaryRules, datetime | None]:
    """A trial that the gate began ends after some days, or a project without tasks would keep the canary
    indefinitely; what comes later does not count. Any other goes on until the metrics or a person end it.
    """
    history = await releases.of_project(session, active.project_id, tables.Release.activated_at.is_not(None))
    rules = msgspec.structs.replace(rules, possible_loss=possible_loss(history, active))
    if not begun_by_gate(release) or release.canary_at is None:
        return rules, None
    settings = projects.settings_of(await projects.by_id(session, release.project_id))
    until = release.canary_at + timedelta(days=settings.canary_days)
    expired = await queries.now(session) >= until
    evidence = release.evidence or {}
    own = msgspec.structs.replace(
        rules,
        loss=settings.canary_loss,
        expired=f"no difference in {settings.canary_days:g} days" if expired else "",
        passed_gate=evidence["verdict"] == "promote" and evidence["compared_with"].get("model") == active.model,
    )
    return own, until


def begun_by_gate(release: tables.Release) -> bool:
    """Whether the gate began it: because the release passed, or because nothing could be examined and the run
    wants a canary then.
    """
    evidence = release.evidence or {}
    return "compared_with" in evidence and evidence.get("verdict") in ("promote", "canary")
