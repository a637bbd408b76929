"""The skill library of every project: the table is the source of truth, the index in memory follows it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from typing import TypeAlias, TypeVar
from uuid import UUID

import msgspec
import numpy as np
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, skills
from app.db.database import TRANSIENT, Sessions, direct, reading
from app.db.models import SkillState
from app.db.offers import offer_of
from app.engine.protocol import Embedder, Vector
from app.loop import Loop
from app.records import Offer
from app.skills.admission import admit
from app.skills.embedding import OpenEmbedder, OptionalEmbedder
from app.skills.extract import Draft
from app.skills.provenance import SkillOrigin
from app.skills.retrieval import Query, Retrieval, fused, needs_embeddings, search
from app.skills.skill_index import IndexedSkill, SkillIndex
from app.skills.visibility import Reach

_FRESH_SECONDS = 0.1  # searches check the table for changes at most this often
_LARGE = 20_000  # skills: above this a search takes milliseconds and runs in a thread
_MANY = 1_000  # changes: above this they are applied in a thread
_BATCH = 64  # skills embedded per request
_REACH: dict[SkillState, Reach] = {
    SkillState.QUARANTINED: "owner",
    SkillState.PROBATION: "trial",
    SkillState.ACTIVE: "all",
}
Result = TypeVar("Result")
Claim: TypeAlias = Callable[[AsyncSession], Awaitable[None]]


class _ProjectIndex:
    """The index of one project's skills, as of revision `rev` of the table."""

    def __init__(self, embedder: str | None) -> None:
        self.embedder = embedder  # the model whose vectors the index compares
        self.index = SkillIndex(embedder)
        self.rev = 0
        self.followed = 0  # revision of the project when the table was last read
        self.checked = float("-inf")  # when the table was last read
        self.lock = asyncio.Lock()  # held while the index is read or changed


class Library:
    """Projects never see each other's skills. Any number of processes may each have a library.

    `open_embedder` returns an embedder that may not be up yet; until it answers, skills are found by n-grams.
    """

    def __init__(
        self,
        sessions: Sessions,
        embedder: Embedder | None = None,
        *,
        retrieval: Retrieval = fused,
        limit: int = 3,
        clock: Callable[[], float] = time.monotonic,
        open_embedder: OpenEmbedder | None = None,
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._embedder = OptionalEmbedder(embedder, clock, open_embedder=open_embedder)
        self._retrieval = retrieval
        self._limit = limit
        self._projects: dict[UUID, _ProjectIndex] = {}

    async def find(
        self,
        project_id: UUID,
        instruction: str,
        scenario: str | None = None,
        limit: int | None = None,
        *,
        principal: str = "",
    ) -> list[Offer]:
        """The skills most likely to help, best first, of those that the principal's tasks may be offered.

        Empty if none fits. At most 0.1 s out of date.
        """
        needs_vector = needs_embeddings(self._retrieval)
        if needs_vector:
            await self._embedder.open()
        project = self._project(project_id)
        if self._clock() - project.checked > _FRESH_SECONDS:
            await self._follow(project_id, project)
        vectors = None
        if project.index.has_vectors and needs_vector:
            vectors = await self._embedder.embed([instruction])
        query = Query(
            instruction=instruction,
            scenario=scenario,
            vector=vectors[0] if vectors else None,
            limit=self._limit if limit is None else limit,
        )
        async with project.lock:
            return await _compute(
                lambda: search(project.index.view(principal), query, self._retrieval),
                in_thread=len(project.index) > _LARGE,
            )

    async def save(
        self,
        project_id: UUID,
        drafts: Sequence[Draft],
        provenance: SkillOrigin = SkillOrigin(),  # noqa: B008  frozen
        *,
        claim: Claim | None = None,
    ) -> list[Offer]:
        """Store validated drafts as the next versions of their names, and return the new versions.

        The policy of the project decides who is offered them. A draft whose source the project already offers to
        the principal is not stored again. `claim` raises, in the same transaction, if the task has another owner.
        """
        pairs = await self._vectors(drafts) or repeat(None)
        new_skills = [self._new_skill(draft, provenance, pair) for draft, pair in zip(drafts, pairs, strict=False)]
        async with self._sessions.begin() as session:
            if claim is not None:
                await claim(session)
            rows = [await admit(session, project_id, new) for new in new_skills]
        await self.refresh(project_id)
        return [offer_of(row) for row in rows if row.task_id == provenance.task_id]

    def _new_skill(
        self, draft: Draft, provenance: SkillOrigin, vectors: tuple[Vector, Vector] | None
    ) -> skills.NewSkill:
        manifest = provenance.manifests.get(draft.name)
        return skills.NewSkill(
            name=draft.name,
            signature=draft.signature,
            source=draft.source,
            apis=list(draft.apis),
            instruction=draft.instruction,
            slots=list(draft.slots),
            scenario=provenance.scenario,
            task_id=provenance.task_id,
            release_id=provenance.release_id,
            principal=provenance.principal,
            taint=provenance.taints.get(draft.name, ""),
            manifest=msgspec.to_builtins(manifest) if manifest else None,
            embedder=self._embedder.model if vectors else None,
            query_vector=vectors[0].tobytes() if vectors else None,
            source_vector=vectors[1].tobytes() if vectors else None,
        )

    async def refresh(self, project_id: UUID) -> None:
        """Bring the index up to date with everything committed before this call."""
        await self._follow(project_id, self._project(project_id))

    def _project(self, project_id: UUID) -> _ProjectIndex:
        """The project's index, rebuilt when the embedder changes."""
        project = self._projects.get(project_id)
        if project is None or project.embedder != self._embedder.model:
            project = self._projects[project_id] = _ProjectIndex(self._embedder.model)
        return project

    async def _follow(self, project_id: UUID, project: _ProjectIndex) -> None:
        called = self._clock()
        async with project.lock:
            if project.checked > called:  # another caller has just read the table
                return
            checked = self._clock()
            async with direct(self._sessions) as handle:
                latest = await skills.latest_rev(handle, project_id)
            if latest != project.followed:
                await self._apply_changes(project_id, project)
                project.followed = latest
            project.checked = checked

    async def _apply_changes(self, project_id: UUID, project: _ProjectIndex) -> None:
        async with reading(self._sessions) as session:
            rows = await skills.changed_since(session, project_id, project.rev)
        if rows:
            await _compute(lambda: _apply(project.index, rows), in_thread=len(rows) > _MANY)
            project.rev = rows[-1].rev

    def filling(self, pause: float = 30.0) -> Loop:
        """While entered, embeds the skills of all projects that lack vectors of the current embedder.

        Those are skills that were stored while it was down, or by a process that ended meanwhile. Any number of
        processes may.
        """
        return Loop("fill in vectors of skills", self.fill_vectors, pause, expected=TRANSIENT)

    async def fill_vectors(self) -> float | None:
        """One round of `filling`. Return 0 while there may be more to embed."""
        await self._embedder.open()
        model = self._embedder.model
        if model is None:
            return None
        async with self._sessions() as session:
            rows = await skills.without_vectors(session, model, _BATCH)
        vectors = await self._vectors(rows)
        if vectors is None:
            return None
        for row, (query, source) in zip(rows, vectors, strict=True):
            async with self._sessions.begin() as session:
                await skills.set_vectors(session, row.id, model, query.tobytes(), source.tobytes())
        return 0

    async def _vectors(self, written: Sequence[Draft | models.Skill]) -> list[tuple[Vector, Vector]] | None:
        """Of the instruction and the source of each; None without any, and while no embedder works."""
        texts = [text for each in written for text in (each.instruction, each.source)]
        found = await self._embedder.embed(texts)
        return None if found is None else list(zip(found[::2], found[1::2], strict=True))


async def _compute(work: Callable[[], Result], *, in_thread: bool) -> Result:
    """Run `work`, in a thread if it takes long. Waits even if cancelled: the caller's lock guards the work."""
    if not in_thread:
        return work()
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])


def _apply(index: SkillIndex, rows: Sequence[models.Skill]) -> None:
    offered = [row for row in rows if row.state in _REACH and not row.held]
    index.remove({row.id for row in rows} - {row.id for row in offered})
    index.put([_indexed(row) for row in offered])


def _indexed(row: models.Skill) -> IndexedSkill:
    return IndexedSkill(
        offer=offer_of(row),
        slots=tuple(row.slots),
        scenario=row.scenario,
        owner=row.principal,
        reach=_REACH[row.state],
        embedder=row.embedder,
        query_vector=_vector(row.query_vector),
        source_vector=_vector(row.source_vector),
    )


def _vector(stored: bytes | None) -> Vector | None:
    return None if stored is None else np.frombuffer(stored, np.float32)
