"""A search as a task makes it."""

from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.search import Query, Retrieval, SkillIndex, search


def found(
    index: SkillIndex,
    retrieval: Retrieval,
    instruction: str,
    label: str | None = None,
    vector: Vector | None = None,
    limit: int = 3,
) -> list[Offer]:
    query = Query(instruction=instruction, scenario=label, vector=vector, limit=limit)
    return search(index, query, retrieval)
