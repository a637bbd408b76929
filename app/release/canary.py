"""Canaries: a release serves a share of a project's new tasks until live metrics decide about it.

Tasks are assigned by a hash of their id, so both arms see the same traffic. Only tasks pinned since both serve
are compared: when another release becomes active, the comparison restarts with that one as the baseline. The
share of one that the gate began rises as more errors are ruled out.
"""

from collections.abc import Callable
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import canaries, releases, tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit
from app.projects import store as projects
from app.release import watch
from app.release.canary_decision import (
    CanaryAction,
    raised_percent,
)
from app.release.canary_trial import CanaryStatus, begun_by_gate, evaluate
from app.release.promote import Promoter, overriding
from app.skills import moves

ACTOR = "canary"  # in the audit log, of automatic decisions


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

    Raises as `canaries.begin`, what `check` raises, and as `Promoter.loaded`: then nothing changes.
    """

    async def checked(session: AsyncSession) -> tuple[tables.Release, tables.Release | None]:
        """The release, and one whose rejection is overridden."""
        release = await releases.get(session, release_id)
        if check is not None:
            check(release)
        return release, await canaries.check_can_begin(session, release, percent, allow_rejected=allow_rejected)

    async with sessions() as session:
        release, _ = await checked(session)
    async with promoter.loaded(release, actor) as report, sessions.begin() as session:
        _, overridden = await checked(session)  # another process may have begun it first
        canary = await canaries.begin(session, release_id, percent, allow_rejected=allow_rejected)
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
        row = await canaries.end(session, release_id, state, _evidence(release, status))
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
        most = projects.settings_of(await projects.by_id(session, release.project_id)).canary_most_percent
        now, errors = release.canary_percent or 0.0, status.decision.metrics["errors"]
        percent = raised_percent(errors, status.shares[0].percent, now, most)
        if percent == now:
            return
        row = await releases.locked(session, release.id)
        if row.canary_percent == now:  # of several processes, one raises it
            await canaries.raise_share(session, row, percent)
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
    return evidence | {
        "verdict": status.decision.action.value,
        "reason": f"as a canary: {status.decision.reason}",
    }
