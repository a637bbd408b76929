"""A canary: a release that serves a share of a project's new tasks until live figures tell what becomes of it.

Tasks are dealt by a hash of their id, so both arms see the same traffic. What counts are tasks pinned since both
serve: where another release becomes active meanwhile, the comparison begins anew with that one.
"""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import audit, canaries, models, releases
from app.db.advisory_locks import swap_lock
from app.db.database import Sessions
from app.db.models import AuditAction, ReleaseState
from app.errors import ConflictError
from app.records import Json
from app.release.canary_decision import Action, Rules, Sample, Verdict, decide
from app.release.promote import Promoter

ACTOR = "canary"  # of what a canary's figures bring about by themselves
_USUAL = canaries.TypicalCost(12, 2_048)  # of a project that has ended no task yet
_RULES = Rules()
_CEILING = 2.0  # times what tasks usually take: beyond it one long task would hide all others


class Against(msgspec.Struct, frozen=True):
    """The release that a canary is compared with."""

    number: int
    model: str


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a canary does, and since when both serve."""

    since: datetime
    against: Against
    verdict: Verdict

    def check(self, canary: models.Release, active: models.Release | None) -> None:
        """Raises ConflictError where someone has ended the canary since, or activated another release."""
        canaries.check_is_canary(canary)
        if active is None or active.number != self.against.number:
            raise ConflictError(f"release {canary.number} is compared with release {self.against.number} no more")


async def begin(
    promoter: Promoter, sessions: Sessions, release_id: UUID, percent: float, actor: str
) -> models.Release:
    """The model servers prove that they have its weights, then new tasks are pinned to it.

    Raises as `canaries.begin`, and as `Promoter.prove` where a server refuses: then nothing changes. ConflictError
    also while another release of the project is brought to serve.
    """
    async with sessions() as session:
        release = await releases.get(session, release_id)
        await canaries.check_can_begin(session, release, percent)
    async with swap_lock(sessions, release.project_id, release.number):
        receipt = await promoter.prove(release, actor)
        async with sessions.begin() as session:
            canary = await canaries.begin(session, release_id, percent)
            detail = {"percent": percent, "swap": receipt}
            await audit.add(session, canary.project_id, canary.id, actor, AuditAction.CANARY_BEGAN, detail)
            return canary


async def judge(session: AsyncSession, release: models.Release, rules: Rules = _RULES) -> Standing:
    """How it does against the active release at this moment. Raises ConflictError if it is no canary."""
    canaries.check_is_canary(release)
    active = await releases.active(session, release.project_id)
    began = canaries.shared_since(release, active)
    usual = await canaries.typical_cost(session, release.project_id, began) or _USUAL
    own, other = await canaries.results(session, release, active, began, rules.ended)
    verdict = decide(
        reward=Sample(own.rewards, other.rewards),
        errors=Sample(own.errors, other.errors),
        turns=Sample(own.turns, other.turns, max(1.0, _CEILING * usual.turns)),
        tokens=Sample(own.tokens, other.tokens, max(1.0, _CEILING * usual.tokens)),
        rules=rules,
    )
    return Standing(since=began, against=Against(active.number, active.model), verdict=verdict)


async def end(
    sessions: Sessions, release_id: UUID, actor: str, standing: Standing | None = None
) -> models.Release:
    """New tasks are pinned to the active release alone. With what speaks against it, it is rejected; without,
    somebody wants it ended, and it is a candidate again. The figures stay on its row and in the log.

    Raises ConflictError if it is no canary, or was compared with a release that serves no more.
    """
    async with sessions.begin() as session:
        release = await releases.locked(session, release_id)
        if standing is not None:
            standing.check(release, await releases.find_active(session, release.project_id))
        state = ReleaseState.REJECTED if standing else ReleaseState.CANDIDATE
        standing = standing or await judge(session, release)
        row = await canaries.end(session, release_id, state, _evidence(release, standing))
        await _tell(session, row, actor, standing)
        return row


async def settle(promoter: Promoter, sessions: Sessions, release_id: UUID) -> Standing:
    """Judge a canary and do what the verdict says. Raises as `judge`, and as activating: it is one still, then."""

    async def tell(session: AsyncSession, release: models.Release) -> None:
        await releases.record_evidence(session, release.id, _evidence(release, standing))
        await _tell(session, release, ACTOR, standing)

    async with sessions() as session:
        standing = await judge(session, await releases.get(session, release_id))
    if standing.verdict.action is Action.REJECT:
        await end(sessions, release_id, ACTOR, standing)
    elif standing.verdict.action is Action.PROMOTE:
        await promoter.activate(release_id, ACTOR, skills="keep", check=standing.check, also=tell)
    return standing


async def _tell(session: AsyncSession, release: models.Release, actor: str, standing: Standing) -> None:
    detail = {"state": release.state.value, **msgspec.to_builtins(standing)}
    await audit.add(session, release.project_id, release.id, actor, AuditAction.CANARY_ENDED, detail)


def _evidence(release: models.Release, standing: Standing) -> dict[str, Json]:
    """What the gate found stays; a verdict that something comes of is the release's own."""
    found = (release.evidence or {}) | {"canary": msgspec.to_builtins(standing)}
    if standing.verdict.action is Action.WAIT:
        return found
    return found | {
        "verdict": standing.verdict.action.value,
        "reason": f"as a canary: {standing.verdict.reason}",
    }
