"""Rows of the skills table as an index takes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Row

from app.base.values import Offer
from app.db.tables import SkillState
from app.engine.protocol import Vector
from app.skills.skill_index import IndexedSkill, SkillIndex
from app.skills.visibility import Reach, owner_of

_REACH: dict[SkillState, Reach] = {
    SkillState.QUARANTINED: "owner",
    SkillState.PROBATION: "trial",
    SkillState.ACTIVE: "all",
}


def apply_changes(index: SkillIndex, rows: Sequence[Row[Any]]) -> None:
    """Put what is offered to someone, and remove the rest. The rows are of `skill_changes.changes`."""
    offered = [row for row in rows if row.state in _REACH and not row.held]
    index.remove({row.id for row in rows} - {row.id for row in offered})
    index.put([indexed(row) for row in offered])


def indexed(row: Row[Any]) -> IndexedSkill:
    """A row of a skill that is offered to someone."""
    on_trial = row.canary if row.state is not SkillState.ACTIVE else None  # a person may offer it to all
    return IndexedSkill(
        offer=Offer(
            skill_id=row.id,
            name=row.name,
            version=row.version,
            signature=row.signature,
            source="",
            instruction=row.instruction,
        ),
        described=row.described,
        slots=tuple(row.slots),
        scenario=row.scenario,
        owner=owner_of(row.principal, on_trial),
        reach="owner" if on_trial else _REACH[row.state],
        embedder=row.embedder,
        query_vector=_vector(row.query_vector),
        source_vector=_vector(row.source_vector),
    )


def _vector(stored: bytes | None) -> Vector | None:
    return None if stored is None else np.frombuffer(stored, np.float32)
