"""Watches: a release that was promoted automatically is compared with the one before, and rolled back if worse.

All of a watch is in the database: any process goes on with it. It ends when other weights become active, so a
person who activates them has decided. A changed API document or prompt makes a release with the same weights,
which is watched instead.
"""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.base.values import Json
from app.db import queries, releases, tables, watches
from app.db.database import Sessions
from app.db.tables import AuditAction
from app.projects import audit, webhooks
from app.projects import store as projects
from app.release import manifest
from app.release.promote import Promoter
from app.release.watch_decision import WatchAction, WatchDecision, WatchRules, decide
from app.skills import moves

ACTOR = moves.WATCH  # in the audit log


class WatchBaseline(msgspec.Struct, frozen=True):
    """The release that served before the watched one."""

    number: int
    model: str


class WatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a watched release with the one before."""

    since: datetime
    until: datetime  # at the latest
    baseline: WatchBaseline
    decision: WatchDecision


async def begin(session: AsyncSession, release: tables.Release, former: tables.Release | None) -> None:
    """Watch a release that has just replaced `former`, unless the project's settings are against it.

    Weights that are watched already go on being compared with those that they replaced.
    """
    project = await projects.by_id(session, release.project_id)
    if former is not None and release.watched_against is None and projects.settings_of(project).watch_days:
        await watches.begin(session, release, former)


async def evaluate(session: AsyncSession, release: tables.Release) -> WatchStatus:
    """Compare it with the release before. Raises ConflictError if it is not watched."""
    watches.check_is_watched(release)
    assert release.watched_against is not None  # it is watched
    assert release.watched_since is not None  # as well
    former = await releases.get(session, release.watched_against)
    settings = projects.settings_of(await projects.by_id(session, release.project_id))
    since, rules = release.watched_since, WatchRules(margin=settings.watch_margin, max_tasks=settings.watch_tasks)
    until = since + timedelta(days=settings.watch_days)
    decision = decide(
        await watches.tasks_before(session, former, since),
        await watches.tasks_since(session, release, rules.max_tasks),
        rules,
        expired=await queries.now(session) >= until,
    )
    baseline = WatchBaseline(former.number, former.model)
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
            row = await watches.locked(session, release_id)
            await watches.keep(session, row, _evidence(row, status, "kept"))
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
        served = [each for each in await watches.under_watch(session, watched) if each.id != former.id]
        for each in served:
            await watches.reject(session, each, _evidence(each, status, "rolled back"))
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
