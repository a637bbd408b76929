"""The skills of a release that is activated again: restored, and what came later taken out."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import manifests, tables
from app.db.manifests import SkillName
from app.db.tables import SkillState
from app.skills import moves, sets

_SERVER = "server"  # the actor of automatic changes


async def restore(
    session: AsyncSession, release: tables.Release, previous: tables.Release, skill_set: str
) -> dict[str, Json]:
    """Restore a release's skills. Those that a later one wrote while it was a canary are in that set: they go."""
    states = await manifests.skill_states(session, skill_set)
    moved = msgspec.structs.asdict(await sets.restore(session, release.project_id, states))
    if previous.number > release.number:
        reason, out = f"its release {previous.number} was rolled back", SkillState.SUPERSEDED
        of_canary = await moves.withdraw(
            session, previous.id, release.project_id, reason, actor=_SERVER, state=out
        )
        moved["withdrawn"] = [*moved["withdrawn"], *of_canary]
    named = _named(moved)
    return {"skills": msgspec.to_builtins(named)} if named else {}


async def planned(
    session: AsyncSession, release: tables.Release, previous: tables.Release
) -> dict[str, list[SkillName]]:
    """The skills that activating a release in place of `previous` would restore or take out now, by what would
    happen to them. Empty for one that never served, which gets the present ones.
    """
    if release.skills is None:
        return {}
    states = await manifests.skill_states(session, release.skills)
    moved = msgspec.structs.asdict(await sets.planned(session, release.project_id, states, release.id))
    if previous.number > release.number:
        gone = {row.id for rows in (moved["superseded"], moved["withdrawn"]) for row in rows}
        written = await moves.written_by(session, previous.id)
        moved["withdrawn"] = [*moved["withdrawn"], *(row for row in written if row.id not in gone)]
    return _named(moved)


def _named(moved: dict[str, list[tables.Skill]]) -> dict[str, list[SkillName]]:
    return {how: list(map(SkillName.of, rows)) for how, rows in moved.items() if rows}
