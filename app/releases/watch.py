"""Watches: a release that was promoted automatically is compared with the one before, and rolled back if worse.

The two served at different times, so only tasks of the same kind are compared. All of a watch is in the
database: any process goes on with it. It ends when other weights become active, so a person who activates
them has decided.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.base.values import Json
from app.db import queries, tables
from app.db.database import Sessions
from app.db.results import UNLABELLED
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit, webhooks
from app.projects import store as projects
from app.releases import manifest, trials_store
from app.releases import store as releases
from app.releases.promotion import Promoter
from app.releases.statistics import (
    ConstantChecks,
    LabelledValue,
    PairedDifference,
    compare,
    informative,
    match,
    mean,
)
from app.releases.trials_store import ReleaseName, WatchedTask, scored_at
from app.skills import moves

_METRICS = 3  # reward, errors, turns: each gets an equal part of alpha
_UNLABELLED = "(no scenario)"
_MOST_NAMED = 20  # scenarios in the evidence
ACTOR = moves.WATCH  # in the audit log


class WatchAction(StrEnum):
    ROLL_BACK = "roll back"
    KEEP = "keep"
    CONTINUE = "continue"


class WatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the decision."""

    alpha: float = 0.05  # probability that any interval of a watch is ever wrong
    margin: float = 0.05  # of reward, and of the share of errors
    turns_margin: float = 0.5  # of the earlier mean of turns
    max_tasks: int = 2_000  # of the new release, after which it is kept


class ScenarioComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: all tasks of both releases, and their means. Reward is null without scores."""

    scenario: str
    tasks: dict[str, int]
    reward: dict[str, float | None]
    errors: dict[str, float | None]


class NotCounted(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by kind that show nothing about the release, at most 20 kinds each, those with most tasks.

    Tasks without a scenario whose instruction only one of the releases had are counted as `(no scenario)`.
    """

    vanished: dict[str, int]  #: earlier tasks of kinds that did not come again
    other_traffic: dict[str, int]  #: new tasks of kinds that the former release did not have
    constant_checks: dict[str, int]  #: new scored tasks of kinds whose scores are all the same: none counts
    unmatched: int  #: new tasks beyond the number of earlier ones of their kind


class WatchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action, with the comparisons that it rests on."""

    action: WatchAction
    reason: str
    tasks: dict[str, int]
    metrics: dict[str, PairedDifference]
    scenarios: list[ScenarioComparison]
    not_counted: NotCounted


def decide(
    before: Sequence[WatchedTask],
    now: Sequence[WatchedTask],
    rules: WatchRules | None = None,
    *,
    expired: bool = False,
) -> WatchDecision:
    """Roll back if reward is lower, errors are more frequent, or turns without a gain in reward are more, each by
    more than its margin; keep it after the last task, or once its time has `expired`.

    `before` are in an order that does not depend on their values, `now` in the order of their ends.
    """
    rules = rules or WatchRules()
    usual = mean([task.turns for task in before if task.turns is not None]) or 0.0
    ceiling = max(1.0, 4 * usual)  # beyond it one long task would outweigh all others
    scored = sorted((task for task in now if task.reward is not None), key=scored_at)
    pairs = {
        "reward": [*informative(match(_rewards(before), _rewards(scored)), _checks_of(before))],
        "errors": [*match(_errors(before), _errors(now))],
        "turns": [*match(_turns(before, ceiling), _turns(now, ceiling))],
    }
    alpha = rules.alpha / _METRICS
    metrics = {name: compare(each, alpha, ceiling if name == "turns" else 1.0) for name, each in pairs.items()}
    action, reason = _decide(metrics, rules, rules.turns_margin * usual)
    if action is WatchAction.CONTINUE and (expired or len(now) >= rules.max_tasks):
        action = WatchAction.KEEP
    return WatchDecision(
        action=action,
        reason=reason,
        tasks={"before": len(before), "now": len(now)},
        metrics=metrics,
        scenarios=_by_scenario(before, now),
        not_counted=_not_counted(before, now, scored, len(pairs["errors"])),
    )


def _decide(
    metrics: Mapping[str, PairedDifference], rules: WatchRules, more_turns: float
) -> tuple[WatchAction, str]:
    reward, errors, turns = (metrics[name].difference for name in ("reward", "errors", "turns"))
    summary = _summarize(metrics)
    if reward is not None and reward.high < -rules.margin:
        return WatchAction.ROLL_BACK, f"lower reward: {summary}"
    if errors is not None and errors.low > rules.margin:
        return WatchAction.ROLL_BACK, f"more errors: {summary}"
    better = reward is not None and reward.low > 0
    if turns is not None and turns.low > more_turns and not better:
        return WatchAction.ROLL_BACK, f"more turns: {summary}"
    if errors is None:
        return (
            WatchAction.CONTINUE,
            "no task to compare: the two share no scenario, and no instruction without one",
        )
    return WatchAction.CONTINUE, f"no loss beyond {rules.margin:g} is certain: {summary}"


def _summarize(metrics: Mapping[str, PairedDifference]) -> str:
    """
    >>> from app.releases.statistics import Interval
    >>> _summarize({"reward": PairedDifference(pairs=9, difference=Interval(-0.25, -0.5, 0.125))})
    'reward -0.25 [-0.5, +0.125] on 9 pairs'
    """
    known = metrics.items()
    return ", ".join(f"{name} {each.difference or 'unknown'} on {each.pairs} pairs" for name, each in known)


def _checks_of(tasks: Iterable[WatchedTask]) -> ConstantChecks:
    checks = ConstantChecks()
    for scenario, value, unscored in _rewards(tasks):
        if not unscored:
            checks.add(scenario, value)
    return checks


def _not_counted(
    before: Sequence[WatchedTask], now: Sequence[WatchedTask], scored: Sequence[WatchedTask], matched: int
) -> NotCounted:
    earlier, later = _by_name(before), _by_name(now)
    checks = _checks_of([*before, *scored])
    constant = {name: len(each) for name, each in _by_name(scored).items() if name in earlier and name in checks}
    others = _alone(later, earlier)
    return NotCounted(
        vanished=_most(_alone(earlier, later)),
        other_traffic=_most(others),
        constant_checks=_most(constant),
        unmatched=len(now) - others.total() - matched,
    )


def _by_scenario(before: Sequence[WatchedTask], now: Sequence[WatchedTask]) -> list[ScenarioComparison]:
    earlier, later = _by_name(before), _by_name(now)
    shared = _most({name: len(each) for name, each in later.items() if name in earlier})
    arms = {name: {"before": earlier[name], "now": later[name]} for name in shared}
    return [
        ScenarioComparison(
            scenario=name,
            tasks={arm: len(tasks) for arm, tasks in both.items()},
            reward={arm: mean([each.value for each in _rewards(tasks)]) for arm, tasks in both.items()},
            errors={arm: mean([each.value for each in _errors(tasks)]) for arm, tasks in both.items()},
        )
        for name, both in arms.items()
    ]


def _by_name(tasks: Iterable[WatchedTask]) -> dict[str, list[WatchedTask]]:
    found: dict[str, list[WatchedTask]] = defaultdict(list)
    for task in tasks:
        found[task.kind].append(task)
    return found


def _alone(
    tasks: Mapping[str, Sequence[WatchedTask]], others: Mapping[str, Sequence[WatchedTask]]
) -> Counter[str]:
    """Of kinds that the other did not have, with one sum for all instructions: their hashes say nothing."""
    found = Counter[str]()
    for name, each in tasks.items():
        if name not in others:
            found[_UNLABELLED if name.startswith(UNLABELLED) else name] += len(each)
    return found


def _most(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_NAMED])


def _rewards(tasks: Iterable[WatchedTask]) -> list[LabelledValue]:
    return [LabelledValue(task.kind, task.reward, task.unscored) for task in tasks if task.reward is not None]


def _errors(tasks: Iterable[WatchedTask]) -> list[LabelledValue]:
    return [LabelledValue(task.kind, task.error) for task in tasks]


def _turns(tasks: Iterable[WatchedTask], ceiling: float) -> list[LabelledValue]:
    return [LabelledValue(task.kind, min(task.turns, ceiling)) for task in tasks if task.turns is not None]


class WatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a watched release with the one before."""

    since: datetime
    until: datetime  # at the latest
    baseline: ReleaseName
    decision: WatchDecision


async def begin(session: AsyncSession, release: tables.Release, former: tables.Release | None) -> None:
    """Watch a release that has just replaced `former`, unless the project's settings are against it.

    Weights that are watched already go on being compared with those that they replaced.
    """
    project = await projects.by_id(session, release.project_id)
    if former is not None and release.watched_against is None and projects.settings_of(project).watch_days:
        await trials_store.begin_watch(session, release, former)


async def evaluate(session: AsyncSession, release: tables.Release) -> WatchStatus:
    """Compare it with the release before. Raises ConflictError if it is not watched."""
    trials_store.check_is_watched(release)
    assert release.watched_against is not None  # it is watched
    assert release.watched_since is not None  # as well
    former = await releases.get(session, release.watched_against)
    settings = projects.settings_of(await projects.by_id(session, release.project_id))
    since, rules = release.watched_since, WatchRules(margin=settings.watch_margin)
    until = since + timedelta(days=settings.watch_days)
    decision = decide(
        await trials_store.tasks_before(session, former, since),
        await trials_store.tasks_since(session, release, rules.max_tasks),
        rules,
        expired=await queries.now(session) >= until,
    )
    baseline = ReleaseName(former.number, former.model)
    return WatchStatus(since=since, until=until, baseline=baseline, decision=decision)


async def apply_decision(promoter: Promoter, sessions: Sessions, release_id: UUID) -> WatchStatus:
    """Evaluate a watched release, and keep it or roll it back. Of several processes, one acts.

    Raises as `evaluate` and `Promoter.activate`: then it is still watched, or was decided about by someone else.
    """
    async with sessions() as session:
        release = await releases.get(session, release_id)
        status = await evaluate(session, release)
    if status.decision.action is WatchAction.ROLL_BACK:
        await _roll_back(promoter, release, status)
    elif status.decision.action is WatchAction.KEEP:
        async with sessions.begin() as session:
            row = await releases.locked(session, release_id)
            trials_store.check_is_watched(row)
            row.watched_against = row.watched_since = None
            await releases.record_evidence(session, row.id, _evidence(row, status, "kept"))
            await _audit(session, row, status, "kept")
    return status


async def _roll_back(promoter: Promoter, watched: tables.Release, status: WatchStatus) -> None:
    """Activate the release before. Those with the watched weights are rejected, and the skills that their tasks
    wrote withdrawn. Skills of others stay as they are, and so do API documents that changed during the watch.
    """
    assert watched.watched_against is not None  # it was evaluated

    def check(former: tables.Release, active: tables.Release | None) -> None:
        if active is None or active.id != watched.id or active.watched_against != former.id:
            raise ConflictError(f"release {watched.number} is not watched any more")

    async def record(session: AsyncSession, former: tables.Release, _: tables.Release | None) -> None:
        row = await releases.locked(session, watched.id)
        served = [each for each in await trials_store.under_watch(session, watched) if each.id != former.id]
        for each in served:
            each.evidence = _evidence(each, status, "rolled back")
            await releases.move(session, each, ReleaseState.REJECTED)
            reason = f"its release {each.number} was rolled back"
            await moves.withdraw(session, each.id, each.project_id, reason, actor=ACTOR)
        await _audit(session, row, status, "rolled back")
        serves = await manifest.keep_tools(session, former, row, ACTOR) if len(served) > 1 else former
        told: dict[str, Json] = {"release": row.number, "serves": serves.number, "reason": status.decision.reason}
        about = row.project_id, None
        await webhooks.enqueue(session, *about, "release.rolled_back", told, release_id=row.id)

    await promoter.activate(watched.watched_against, ACTOR, skills="keep", check=check, on_activated=record)


async def _audit(session: AsyncSession, release: tables.Release, status: WatchStatus, state: str) -> None:
    detail = {"state": state, **msgspec.to_builtins(status)}
    await audit.add(session, release.project_id, release.id, ACTOR, AuditAction.WATCH_ENDED, detail)


def _evidence(release: tables.Release, status: WatchStatus, state: str) -> dict[str, Json]:
    """Keep the evidence of the gate and the canary; a roll-back replaces the verdict."""
    watch: dict[str, Json] = {"state": state, "reason": status.decision.reason, **msgspec.to_builtins(status)}
    evidence = {**(release.evidence or {}), "watch": watch}
    if status.decision.action is not WatchAction.ROLL_BACK:
        return evidence
    return evidence | {"verdict": "reject", "reason": f"rolled back: {status.decision.reason}"}
