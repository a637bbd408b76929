"""Canaries: a release serves a share of a project's new tasks until live metrics decide about it.

Tasks are assigned by a hash of their id, so both arms see the same traffic. First which of them show
something (`counted`), how their metrics compare and what that decides (`decide`), all pure; then the trial of
a canary as the database has it (`evaluate`), and how one begins and ends.
"""

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.base.values import Json
from app.db import queries, tables
from app.db.database import Sessions
from app.db.results import UNLABELLED
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit
from app.projects import store as projects
from app.releases import store as releases
from app.releases import trials_store, watch
from app.releases.promotion import Promoter, overriding
from app.releases.reference import possible_loss
from app.releases.statistics import (
    AssignedValue,
    ConstantChecks,
    Interval,
    KindMean,
    at_any_time,
    at_the_end,
    effects,
    is_one_sided,
    mean,
)
from app.releases.trials_store import CanaryShare, CanaryTask, ReleaseName, TypicalCost, UsualKind, scored_at
from app.skills import moves

ACTOR = "canary"  # in the audit log, of automatic decisions
_DEFAULT_COST = TypicalCost(12, 2_048)  # of a project without finished tasks
_FEW_DAYS, _MOST_PARTS = 3, 14  # of the picture of a trial
_ALPHA_PART = 0.2  # of the error of a decision, for calling a kind one-sided although it is not
_MOST_NAMED = 20  # kinds in the evidence
_MOST_PERCENT = 50.0  # of the tasks, to which the share of a canary rises by itself

# Parts of alpha. A canary is rejected for its rewards or its errors at any time, or its rewards at the end; it is
# promoted for its rewards at any time, or at the end. So neither goes wrong more often than alpha.
_AT_ANY_TIME = 0.2  # for each of the metrics
_AT_THE_END = 0.6

_CEILING_FACTOR = 2.0  # times the usual: beyond it one long task would outweigh all others
MEASURES: Mapping[str, Callable[[CanaryTask], float | None]] = {
    "reward": attrgetter("reward"),
    "errors": attrgetter("error"),
    "turns": attrgetter("turns"),
    "tokens": attrgetter("tokens"),
}


class UncountedTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by kind that show nothing about the canary, at most 20 kinds each, those with most tasks.

    A kind is one-sided if one release has more of its tasks, or of their scores, than chance explains. `all_of` is
    `tasks` or `scores` if that is so for each of the kinds, or for all of them together: then none of them count.
    """

    one_sided_tasks: dict[str, dict[str, int]] = {}
    one_sided_scores: dict[str, dict[str, int]] = {}
    constant_checks: dict[str, int] = {}  #: scored tasks of kinds whose scores are all the same: no reward counts
    vanished: dict[str, int] = {}  #: earlier tasks of scenarios that did not come during the trial
    all_of: str = ""


def share_at(shares: Sequence[CanaryShare], moment: datetime) -> float:
    """The canary's share of the tasks that began then, from 0 to 1. A claim may have read the share just before it
    was raised and begin just after: too few to matter.
    """
    place = bisect_right(shares, moment, key=lambda each: each.since)
    return shares[max(0, place - 1)].percent / 100


def counted(
    values: Mapping[str, Sequence[AssignedValue]], usual: Mapping[str, UsualKind], alpha: float
) -> tuple[dict[str, Sequence[AssignedValue]], UncountedTraffic]:
    """The values of each metric that count, in the same order.

    Kinds are one-sided by the releases of their tasks alone. Whether the scores of a kind differ depends on the
    scores alone: between equal releases, chance gave them to one or the other all the same.
    """
    tasks = _one_sided(values["errors"], alpha * _ALPHA_PART / 2)
    scores = _one_sided(values["reward"], alpha * _ALPHA_PART / 2)
    found: dict[str, Sequence[AssignedValue]] = {}
    for name, each in values.items():
        without = tasks.keys() | scores.keys() if name == "reward" else tasks.keys()
        found[name] = [value for value in each if value.kind not in without]
    nothing_left = {name: bool(each) and not found[name] for name, each in values.items()}
    found["reward"], constant = _without_constant(found["reward"], usual)
    all_of = ""
    for name, what in (("errors", "tasks"), ("reward", "scores")):
        if nothing_left[name] or is_one_sided(found[name], alpha * _ALPHA_PART / 2):
            all_of = all_of or what
            found = {other: [] if what == "tasks" or other == name else each for other, each in found.items()}
    return found, UncountedTraffic(
        one_sided_tasks=_most(tasks), one_sided_scores=_most(scores), constant_checks=constant, all_of=all_of
    )


def vanished(usual: Mapping[str, UsualKind], tasks: Iterable[CanaryTask]) -> dict[str, int]:
    """Earlier tasks of the scenarios that did not come again; none before there are tasks."""
    there = {task.kind for task in tasks}
    gone = {k: u.tasks for k, u in usual.items() if there and k not in there and not k.startswith(UNLABELLED)}
    return dict(Counter(gone).most_common(_MOST_NAMED))


def _without_constant(
    rewards: Sequence[AssignedValue], usual: Mapping[str, UsualKind]
) -> tuple[list[AssignedValue], dict[str, int]]:
    """The rewards that count, and the number of those of each kind whose check is constant, of which the first few
    count. Once a score differs, all of its kind do.
    """
    checks = ConstantChecks()
    for kind, each in usual.items():
        if each.scores:
            checks.add(kind, each.same, each.scores)
    waited = []
    for value in rewards:
        waited.append(value.kind in checks)
        if not value.unscored:
            checks.add(value.kind, value.value)
    found = [value for value, late in zip(rewards, waited, strict=True) if not (late and value.kind in checks)]
    constant = Counter(value.kind for value in rewards if value.kind in checks)
    return found, dict(constant.most_common(_MOST_NAMED))


def _one_sided(values: Iterable[AssignedValue], alpha: float) -> dict[str, dict[str, int]]:
    """By kind, the tasks of both releases."""
    kinds: dict[str, list[AssignedValue]] = defaultdict(list)
    for value in values:
        kinds[value.kind].append(value)
    return {
        kind: {"canary": own, "baseline": len(each) - own}
        for kind, each in kinds.items()
        if is_one_sided(each, alpha / len(kinds))
        for own in [sum(value.on_canary for value in each)]
    }


def _most(kinds: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    by_size = sorted(kinds.items(), key=lambda each: -sum(each[1].values()))
    return dict(by_size[:_MOST_NAMED])


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Means, and the number of tasks behind them. Null where an arm has no tasks.

    `difference` is the canary minus the baseline, by the tasks that chance gave to one or the other, each
    compared with what is usual of its kind; its bounds hold at all times. `at_the_end` holds at the end of the
    trial, and is null before.
    """

    tasks: dict[str, int]
    canary: float | None
    baseline: float | None
    difference: Interval | None
    at_the_end: Interval | None = None


def values_of(
    tasks: Sequence[CanaryTask], shares: Sequence[CanaryShare], ceilings: Mapping[str, float]
) -> dict[str, list[AssignedValue]]:
    """Of each metric, in the order in which they became known, as parts of the ceiling."""
    placed = [(task, share_at(shares, task.started_at)) for task in tasks]
    scored = sorted((each for each in placed if each[0].reward is not None), key=lambda each: scored_at(each[0]))
    found = {}
    for name, measure in MEASURES.items():
        ceiling = ceilings[name]
        found[name] = [
            AssignedValue(
                task.kind,
                task.on_canary,
                share,
                min(value / ceiling, 1.0),
                task.scored_at if name == "reward" else task.finished_at,
                name == "reward" and task.unscored,
            )
            for task, share in (scored if name == "reward" else placed)
            if (value := measure(task)) is not None
        ]
    return found


def ceilings_of(typical: TypicalCost) -> dict[str, float]:
    """The largest value of each metric that counts, in its unit."""
    turns, tokens = (max(1.0, _CEILING_FACTOR * usual) for usual in (typical.turns, typical.tokens))
    return {"reward": 1.0, "errors": 1.0, "turns": turns, "tokens": tokens}


def usual_of(name: str, usual: Mapping[str, UsualKind]) -> dict[str, KindMean]:
    """Costs are expected from the tasks of the trial alone."""
    if name == "reward":
        return {kind: KindMean(each.scored, each.reward) for kind, each in usual.items()}
    return {kind: KindMean(each.tasks, each.errors) for kind, each in usual.items()} if name == "errors" else {}


def compare_metric(
    values: Sequence[AssignedValue], usual: Mapping[str, KindMean], ceiling: float, alpha: float, *, ended: bool
) -> MetricComparison:
    """Of values that are parts of the ceiling, in the unit of the metric. `ended`: the trial has."""
    arms = {
        name: [value.value * ceiling for value in values if value.on_canary is own]
        for name, own in (("canary", True), ("baseline", False))
    }
    by_task = effects(values, usual)
    difference = at_any_time(by_task, _AT_ANY_TIME * alpha) if all(arms.values()) else None
    last = at_the_end(by_task, _AT_THE_END * alpha) if ended and difference is not None else None
    return MetricComparison(
        tasks={name: len(each) for name, each in arms.items()},
        canary=mean(arms["canary"]),
        baseline=mean(arms["baseline"]),
        difference=None if difference is None else difference.scaled(ceiling),
        at_the_end=None if last is None else last.scaled(ceiling),
    )


def summarize(metrics: Mapping[str, MetricComparison], *, at_the_end: bool = False) -> str:
    """
    >>> some = Interval(0.25, 0.125, 0.5)
    >>> tasks = {"canary": 9, "baseline": 80}
    >>> summarize({"reward": MetricComparison(tasks=tasks, canary=1, baseline=0.75, difference=some)})
    'reward +0.25 [+0.125, +0.5] on 9 and 80 tasks'
    """
    parts = []
    for name, metric in metrics.items():
        by = metric.at_the_end if at_the_end else metric.difference
        parts.append(f"{name} {by or 'unknown'} on {metric.tasks['canary']} and {metric.tasks['baseline']} tasks")
    return ", ".join(parts)


def known_until(
    values: Sequence[AssignedValue], usual: Mapping[str, KindMean], moment: datetime, alpha: float
) -> Interval | None:
    """The difference as it was known at a moment; None before both arms had values."""
    known = [value for value in values if value.known_at is not None and value.known_at <= moment]
    if len({value.on_canary for value in known}) < 2:
        return None
    return at_any_time(effects(known, usual), _AT_ANY_TIME * alpha)


class CanaryAction(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    STOP = "stop"  # it is a candidate again: its time is over, and nothing speaks for or against it
    WAIT = "wait"


class CanaryRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the decision."""

    alpha: float = 0.05  # probability of rejecting one that is as good, and of promoting one that is worse
    margin: float = 0.05  # of reward: a larger loss must be ruled out where tokens decide
    loss: float = 0.2  # of reward, and of the share without errors: must be ruled out at the end
    max_scored: int = 2_000  # scored tasks of the canary, after which its trial ends
    max_compared: int = 20_000  # tasks of both arms, after which it ends: later ones are not compared
    expired: str = ""  # why its trial ends now, however few tasks it had
    passed_gate: bool = False  # compared with what is active: promoted at the end if no loss is left to fear
    possible_loss: float = 0.0  # of the active release, see `CanaryDecision`: without a gate it narrows the margin

    @property
    def margin_left(self) -> float:
        return self.margin if self.passed_gate else max(0.0, self.margin - self.possible_loss)


class CanaryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action, with the comparisons that it rests on.

    `possible_loss` is of one that is promoted: the reward that it and the releases before it may have lost since
    the reference, by promotions without a gate, less what they gained for certain. It stays within the margin,
    however many there are.
    """

    action: CanaryAction
    reason: str
    metrics: dict[str, MetricComparison]
    not_counted: UncountedTraffic = UncountedTraffic()
    possible_loss: float = 0.0


def decide(
    tasks: Sequence[CanaryTask],
    shares: Sequence[CanaryShare],
    usual: Mapping[str, UsualKind],
    typical: TypicalCost,
    rules: CanaryRules | None = None,
) -> CanaryDecision:
    """Reject if reward or errors are worse; promote if reward is better, or equal with fewer tokens.

    At the end of the trial one look more decides by narrower bounds, and one that passed the gate is promoted if a
    loss beyond `rules.loss` is ruled out.
    What is undecided then is a candidate again. Without scores a canary can be rejected, but not promoted
    before that. Scores that are all the same, as of a check that is always true, cannot tell better from worse:
    they do not count, by kind, and where all are the same, fewer tokens do not promote it.

    `tasks` are in the order of their ends, `usual` is from before them.
    """
    rules = rules or CanaryRules()
    ceilings = ceilings_of(typical)
    known = values_of(tasks, shares, ceilings)
    ended = _end_of_trial(known, rules)
    values, ignored = counted(known, usual, rules.alpha)
    metrics = {
        name: compare_metric(each, usual_of(name, usual), ceilings[name], rules.alpha, ended=bool(ended))
        for name, each in values.items()
    }
    alike = _alike(values["reward"], ignored)
    ignored = msgspec.structs.replace(ignored, vanished=vanished(usual, tasks))
    action, reason = _decide(metrics, rules, alike)
    if action is CanaryAction.WAIT and ended:
        action, reason = _at_the_end(metrics, rules, ignored, alike, ended)
    lost = _possible_loss(metrics["reward"], rules) if action is CanaryAction.PROMOTE else 0.0
    return CanaryDecision(action=action, reason=reason, metrics=metrics, not_counted=ignored, possible_loss=lost)


def race(
    tasks: Sequence[CanaryTask],
    shares: Sequence[CanaryShare],
    usual: Mapping[str, UsualKind],
    moments: Sequence[datetime],
    rules: CanaryRules | None = None,
) -> dict[str, list[Interval | None]]:
    """The differences of reward and errors as they were known at each of these moments, with the bounds that hold
    at all times. By the kinds of tasks that count now; arguments as of `decide`.
    """
    rules = rules or CanaryRules()
    values, _ = counted(values_of(tasks, shares, dict.fromkeys(MEASURES, 1.0)), usual, rules.alpha)
    return {
        name: [known_until(values[name], usual_of(name, usual), moment, rules.alpha) for moment in moments]
        for name in ("reward", "errors")
    }


def raised_percent(errors: MetricComparison, began: float, now: float) -> float:
    """The share that a canary may serve, in percent, from what is known about its errors.

    The share times the increase of errors that is not ruled out stays what it was when nothing was known,
    `began`: no more tasks are at risk than then. It rises by half at least, so that steps are few, and up to
    half of the tasks.

    >>> known = Interval(0.0, -0.25, 0.25)
    >>> raised_percent(MetricComparison(tasks={}, canary=0, baseline=0, difference=known), 10, 10)
    40.0
    """
    if errors.difference is None:
        return now
    allowed = min(_MOST_PERCENT, began / max(errors.difference.high, began / 100))
    return allowed if allowed >= 1.5 * now or now < allowed == _MOST_PERCENT else now


def _alike(rewards: Sequence[AssignedValue], ignored: UncountedTraffic) -> str:
    """Why the rewards show no loss, although there are some. Empty if they may."""
    scores = {value.value for value in rewards if not value.unscored}
    if len(scores) > 1 or not (scores or ignored.constant_checks):
        return ""
    what = f"every score is {scores.pop():g}" if scores else "the scores of each kind are all the same"
    return f"{what}, and such scores show no loss (send feedback)"


def _decide(metrics: Mapping[str, MetricComparison], rules: CanaryRules, alike: str) -> tuple[CanaryAction, str]:
    """What the bounds say that hold at any time. `alike` says why rewards show no loss, if they do not."""
    reward, errors, tokens = (metrics[name].difference for name in ("reward", "errors", "tokens"))
    summary = summarize(metrics)
    if errors is not None and errors.low > 0:
        return CanaryAction.REJECT, f"more errors: {summary}"
    if reward is not None:
        if reward.high < 0:
            return CanaryAction.REJECT, f"lower reward: {summary}"
        if reward.low > 0:
            return CanaryAction.PROMOTE, f"higher reward: {summary}"
        if not alike and reward.low >= -rules.margin_left and tokens is not None and tokens.high < 0:
            return CanaryAction.PROMOTE, f"reward within {rules.margin_left:.2g}, with fewer tokens: {summary}"
    return CanaryAction.WAIT, f"{_missing(metrics, rules, alike)}: {summary}"


def _missing(metrics: Mapping[str, MetricComparison], rules: CanaryRules, alike: str) -> str:
    """What a decision waits for."""
    if metrics["reward"].difference is None and not alike:
        return "no scores to compare, which promotion needs (send feedback)"
    left = rules.max_scored - metrics["reward"].tasks["canary"]
    missing = f"no significant difference yet, at most {left} more scored tasks"
    if alike:
        return f"{missing}: {alike}"
    if rules.margin_left < rules.margin:
        missing += (
            f", and fewer tokens count within {rules.margin_left:.2g} of reward only, as earlier releases may "
            f"have lost {rules.possible_loss:.2g}"
        )
    return missing


def _at_the_end(
    metrics: Mapping[str, MetricComparison], rules: CanaryRules, ignored: UncountedTraffic, alike: str, ended: str
) -> tuple[CanaryAction, str]:
    reward, errors = None if alike else metrics["reward"].at_the_end, metrics["errors"].at_the_end
    summary = summarize(metrics, at_the_end=True)
    reason = f"{ended}, in the end {summary}"
    if reward is not None and reward.high < 0:
        return CanaryAction.REJECT, f"lower reward in the end: {summary}"
    if ignored.all_of:
        return (
            CanaryAction.STOP,
            f"not comparable, {ignored.all_of} came from one release more than chance explains: {reason}",
        )
    if reward is not None and reward.low > 0 and (errors is None or errors.low <= 0):
        return CanaryAction.PROMOTE, f"higher reward in the end: {summary}"
    if not rules.passed_gate:
        return CanaryAction.STOP, reason
    for name in ("errors",) if alike else ("errors", "reward"):
        if metrics[name].at_the_end is None and any(metrics[name].tasks.values()):
            return CanaryAction.STOP, f"chance left no {name} of both releases to compare: {reason}"
    lost = max(-reward.low if reward else 0.0, errors.high if errors else 0.0)
    if lost > rules.loss:
        return CanaryAction.STOP, f"a loss of {lost:.3g} is not ruled out: {reason}"
    what = f"{alike}, but no more errors beyond {rules.loss:g}" if alike else f"no loss beyond {rules.loss:g}"
    return CanaryAction.PROMOTE, f"{what}, and it passed the gate: {reason}"


def _possible_loss(reward: MetricComparison, rules: CanaryRules) -> float:
    """Since the reference: a proven gain makes up for as much as it is at least."""
    gained = max((each.low for each in (reward.difference, reward.at_the_end) if each is not None), default=0.0)
    if gained > 0:
        return max(0.0, rules.possible_loss - gained)
    own = 0.0 if rules.passed_gate or reward.difference is None else -reward.difference.low
    return rules.possible_loss + own


def _end_of_trial(values: Mapping[str, Sequence[AssignedValue]], rules: CanaryRules) -> str:
    """Why the comparison ends without a significant difference. Empty while it goes on."""
    if len(values["errors"]) >= rules.max_compared:
        return f"no difference in the first {rules.max_compared} tasks of both"
    if sum(value.on_canary for value in values["reward"]) >= rules.max_scored:
        return f"no difference in {rules.max_scored} scored tasks"
    return rules.expired


_RULES = CanaryRules()


class RaceMoment(NamedTuple):
    """The differences of a canary to its baseline, as they were known then. None before both had tasks."""

    at: datetime
    reward: Interval | None
    errors: Interval | None


class CanaryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a canary with its baseline, since both serve."""

    since: datetime
    baseline: ReleaseName
    shares: Sequence[trials_store.CanaryShare]  # of the new tasks, oldest first
    decision: CanaryDecision

    def check(self, canary: tables.Release, active: tables.Release | None) -> None:
        """Raises ConflictError if the canary has ended since, or another release was activated."""
        trials_store.check_is_canary(canary)
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
    tasks = await trials_store.ended_tasks(session, release, baseline, status.since, most, ended)
    usual = await trials_store.usual_kinds(session, release.project_id, status.since)
    trial = _Trial(status.since, status.baseline, status.shares, tasks, usual, _DEFAULT_COST, _RULES)
    return await trial.race(ended)


async def _read_trial(session: AsyncSession, release: tables.Release, rules: CanaryRules) -> "_Trial":
    trials_store.check_is_canary(release)
    active = await releases.active(session, release.project_id)
    rules, until = await _rules_for(session, release, active, rules)
    began = await trials_store.shared_since(session, release, active)
    return _Trial(
        began,
        ReleaseName(active.number, active.model),
        trials_store.shares_of(release),
        await trials_store.ended_tasks(session, release, active, began, rules.max_compared, until),
        await trials_store.usual_kinds(session, release.project_id, began),
        await trials_store.typical_cost(session, release.project_id, began) or _DEFAULT_COST,
        rules,
    )


@dataclass(frozen=True)
class _Trial:
    """What a comparison rests on. Comparing 20,000 tasks takes a quarter of a second: a thread does it."""

    began: datetime
    baseline: ReleaseName
    shares: Sequence[trials_store.CanaryShare]
    tasks: Sequence[trials_store.CanaryTask]
    usual: Mapping[str, trials_store.UsualKind]
    typical: trials_store.TypicalCost
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


async def begin(
    promoter: Promoter,
    sessions: Sessions,
    release_id: UUID,
    percent: float,
    actor: str,
    *,
    allow_rejected: bool = False,
    check: Callable[[tables.Release], None] | None = None,
) -> tables.Release:
    """Load its weights on the model servers, then pin new tasks to it.

    Raises as `trials_store.begin`, what `check` raises, and as `Promoter.loaded`: then nothing changes.
    """

    async def checked(session: AsyncSession) -> tuple[tables.Release, tables.Release | None]:
        """The release, and one whose rejection is overridden."""
        release = await releases.get(session, release_id)
        if check is not None:
            check(release)
        return release, await trials_store.check_can_begin(
            session, release, percent, allow_rejected=allow_rejected
        )

    async with sessions() as session:
        release, _ = await checked(session)
    async with promoter.loaded(release, actor) as report, sessions.begin() as session:
        _, overridden = await checked(session)  # another process may have begun it first
        canary = await trials_store.begin(session, release_id, percent, allow_rejected=allow_rejected)
        detail = {"percent": percent, "swap": report, **overriding(overridden)}
        await audit.add(session, canary.project_id, canary.id, actor, AuditAction.CANARY_BEGAN, detail)
        return canary


async def end(
    sessions: Sessions, release_id: UUID, actor: str, status: CanaryStatus | None = None
) -> tables.Release:
    """Pin new tasks to the active release only. The canary is rejected if the decision of `status` is against it,
    and the skills that its tasks wrote are withdrawn; otherwise it is a candidate again. The metrics stay in its
    evidence and in the audit log.

    Raises ConflictError if it is not a canary, or its baseline is no longer active.
    """
    async with sessions.begin() as session:
        release = await releases.locked(session, release_id)
        if status is not None:
            status.check(release, await releases.find_active(session, release.project_id))
        rejected = status is not None and status.decision.action is CanaryAction.REJECT
        state = ReleaseState.REJECTED if rejected else ReleaseState.CANDIDATE
        status = status or await evaluate(session, release)
        row = await trials_store.end(session, release_id, state, _evidence(release, status))
        await _audit(session, row, actor, status)
        if rejected:
            reason = f"its release {row.number} was rejected as a canary"
            await moves.withdraw(session, row.id, row.project_id, reason)
        return row


async def apply_decision(promoter: Promoter, sessions: Sessions, release_id: UUID) -> CanaryStatus:
    """Evaluate a canary, and promote, reject or stop it, or raise its share. Raises as `evaluate` and
    `Promoter.activate`: then it stays a canary.
    """

    async def record(session: AsyncSession, release: tables.Release, former: tables.Release | None) -> None:
        await releases.record_evidence(session, release.id, _evidence(release, status))
        await _audit(session, release, ACTOR, status)
        await watch.begin(session, release, former)

    async with sessions() as session:
        release = await releases.get(session, release_id)
        status = await evaluate(session, release)
    if status.decision.action in (CanaryAction.REJECT, CanaryAction.STOP):
        await end(sessions, release_id, ACTOR, status)
    elif status.decision.action is CanaryAction.PROMOTE:
        await promoter.activate(release_id, ACTOR, skills="keep", check=status.check, on_activated=record)
    elif begun_by_gate(release):
        await _raise_share(sessions, release, status)
    return status


async def _raise_share(sessions: Sessions, release: tables.Release, status: CanaryStatus) -> None:
    async with sessions.begin() as session:
        now, errors = release.canary_percent or 0.0, status.decision.metrics["errors"]
        percent = raised_percent(errors, status.shares[0].percent, now)
        if percent == now:
            return
        row = await releases.locked(session, release.id)
        if row.canary_percent == now:  # of several processes, one raises it
            await trials_store.raise_share(session, row, percent)
            detail = {"from": now, "percent": percent, "errors": msgspec.to_builtins(errors)}
            await audit.add(session, row.project_id, row.id, ACTOR, AuditAction.CANARY_RAISED, detail)


async def _audit(session: AsyncSession, release: tables.Release, actor: str, status: CanaryStatus) -> None:
    detail = {"state": release.state.value, **msgspec.to_builtins(status)}
    await audit.add(session, release.project_id, release.id, actor, AuditAction.CANARY_ENDED, detail)


def _evidence(release: tables.Release, status: CanaryStatus) -> dict[str, Json]:
    """Keep the gate's evidence; a decision other than WAIT replaces its verdict."""
    evidence = (release.evidence or {}) | {"canary": msgspec.to_builtins(status)}
    if status.decision.action is CanaryAction.WAIT:
        return evidence
    return evidence | {"verdict": status.decision.action.value, "reason": f"as a canary: {status.decision.reason}"}
