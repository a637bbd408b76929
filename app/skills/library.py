"""The skill library of every project: the table is the truth, what is in memory follows it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import numpy as np

from app.db import models, skills
from app.db.database import Sessions
from app.engine.protocol import Embedder, Vector
from app.records import Offer
from app.skills.embedding import Embedding, Opening
from app.skills.extract import Draft
from app.skills.retrieval import Query, Retrieval, fused, needs_embeddings, search
from app.skills.skill_index import IndexedSkill, SkillIndex

_FRESH_SECONDS = 0.1  # a search looks for changes no more often than this
_LARGE = 20_000  # skills: from here on a search takes milliseconds, and is made beside the event loop
_MANY = 1_000  # changes: as above
_BATCH = 64  # skills embedded at once
Result = TypeVar("Result")


class _Copy:
    """What one project's table held at `rev`."""

    def __init__(self, embedder: str | None) -> None:
        self.embedder = embedder  # the model whose vectors the index compares
        self.index = SkillIndex(embedder)
        self.rev = 0
        self.checked = float("-inf")  # when the table was last looked at
        self.lock = asyncio.Lock()  # held while the index is read or changed


class Library:
    """Projects never see each other's skills. Any number of processes may each have a library.

    An embedder that is not there yet is given by its `opening`; until it answers, skills are found by words alone.
    """

    def __init__(
        self,
        sessions: Sessions,
        embedder: Embedder | None = None,
        *,
        retrieval: Retrieval = fused,
        limit: int = 3,
        clock: Callable[[], float] = time.monotonic,
        opening: Opening | None = None,
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._embedding = Embedding(embedder, clock, opening=opening)
        self._retrieval = retrieval
        self._limit = limit
        self._copies: dict[UUID, _Copy] = {}

    async def find(
        self, project_id: UUID, instruction: str, scenario: str | None = None, limit: int | None = None
    ) -> list[Offer]:
        """The skills most likely to help, best first; none if none fits. At most 0.1 s out of date."""
        needs_vector = needs_embeddings(self._retrieval)
        if needs_vector:
            await self._embedding.open()
        copy = self._copy(project_id)
        if self._clock() - copy.checked > _FRESH_SECONDS:
            await self._follow(project_id, copy)
        vectors = None
        if copy.index.has_vectors and needs_vector:
            vectors = await self._embedding.embed([instruction])
        query = Query(
            instruction=instruction,
            scenario=scenario,
            vector=vectors[0] if vectors else None,
            limit=self._limit if limit is None else limit,
        )
        async with copy.lock:
            return await _compute(
                lambda: search(copy.index, query, self._retrieval), in_thread=len(copy.index) > _LARGE
            )

    async def save(
        self,
        project_id: UUID,
        drafts: Sequence[Draft],
        *,
        task_id: UUID | None = None,
        release_id: UUID | None = None,
        scenario: str | None = None,
    ) -> list[Offer]:
        """Store checked drafts as the next versions of their names, and return those.

        A draft whose source the project has already is no new version, and is not among them.
        """
        news = []
        for draft in drafts:
            vectors = await self._embedding.embed([draft.instruction, draft.source])
            news.append(
                skills.NewSkill(
                    name=draft.name,
                    signature=draft.signature,
                    source=draft.source,
                    apis=list(draft.apis),
                    instruction=draft.instruction,
                    slots=list(draft.slots),
                    scenario=scenario,
                    task_id=task_id,
                    release_id=release_id,
                    embedder=self._embedding.model if vectors else None,
                    query_vector=vectors[0].tobytes() if vectors else None,
                    source_vector=vectors[1].tobytes() if vectors else None,
                )
            )
        async with self._sessions.begin() as session:
            rows = [await skills.add(session, project_id, new) for new in news]
        await self.refresh(project_id)
        return [_offer(row) for row in rows if row.task_id == task_id]

    async def refresh(self, project_id: UUID) -> None:
        """What was committed before this call is in memory after it."""
        await self._follow(project_id, self._copy(project_id))

    def _copy(self, project_id: UUID) -> _Copy:
        """The project's, begun anew once there is another embedder than it was made for."""
        copy = self._copies.get(project_id)
        if copy is None or copy.embedder != self._embedding.model:
            copy = self._copies[project_id] = _Copy(self._embedding.model)
        return copy

    async def _follow(self, project_id: UUID, copy: _Copy) -> None:
        called = self._clock()
        async with copy.lock:
            if copy.checked > called:  # another caller has looked meanwhile
                return
            checked = self._clock()
            async with self._sessions() as session:
                rows = await skills.changed_since(session, project_id, copy.rev)
            if rows:
                await _compute(lambda: _apply(copy.index, rows), in_thread=len(rows) > _MANY)
                copy.rev = rows[-1].rev
            copy.checked = checked

    async def fill_vectors(self, project_id: UUID) -> int:
        """Make the vectors that skills lack for the present embedder, as far as it answers. Returns how many."""
        await self._embedding.open()
        model = self._embedding.model
        filled = 0
        while model is not None:
            async with self._sessions() as session:
                rows = await skills.without_vectors(session, project_id, model, _BATCH)
            vectors = await self._embedding.embed([text for row in rows for text in (row.instruction, row.source)])
            if vectors is None:
                break
            for row, query, source in zip(rows, vectors[::2], vectors[1::2], strict=True):
                async with self._sessions.begin() as session:
                    await skills.set_vectors(session, row.id, model, query.tobytes(), source.tobytes())
            filled += len(rows)
        return filled


async def _compute(work: Callable[[], Result], *, in_thread: bool) -> Result:
    """Beside the event loop where it takes long. Even if cancelled it waits: the caller's lock guards the work."""
    if not in_thread:
        return work()
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])


def _apply(index: SkillIndex, rows: Sequence[models.Skill]) -> None:
    active = [row for row in rows if row.state is models.SkillState.ACTIVE]
    index.remove([row.id for row in rows if row.state is not models.SkillState.ACTIVE])
    index.put([_indexed(row) for row in active])


def _indexed(row: models.Skill) -> IndexedSkill:
    return IndexedSkill(
        offer=_offer(row),
        slots=tuple(row.slots),
        scenario=row.scenario,
        embedder=row.embedder,
        query_vector=_vector(row.query_vector),
        source_vector=_vector(row.source_vector),
    )


def _vector(stored: bytes | None) -> Vector | None:
    return None if stored is None else np.frombuffer(stored, np.float32)


def _offer(row: models.Skill) -> Offer:
    return Offer(
        skill_id=row.id,
        name=row.name,
        version=row.version,
        signature=row.signature,
        source=row.source,
        instruction=row.instruction,
    )
