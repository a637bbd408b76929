"""The skill library of every project: the table is the source of truth, the index of this process follows it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable
from uuid import UUID

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import first_line
from app.base.loop import Loop
from app.base.values import Offer
from app.db import tables
from app.db.database import TRANSIENT, Sessions, direct
from app.engine.protocol import Embedder
from app.skills import store as skills
from app.skills.admission import admit
from app.skills.extract import Draft
from app.skills.index_files import IndexFiles, apply_changes, open_index
from app.skills.offers import offer_of
from app.skills.provenance import SkillOrigin
from app.skills.search import (
    OFFERED,
    OpenEmbedder,
    OptionalEmbedder,
    Query,
    Retrieval,
    RetrievalTrace,
    SkillIndex,
    fused,
    needs_embeddings,
    search,
)
from app.skills.similarity import document_of
from app.skills.visibility import owners_for

_NEVER = float("-inf")
_FRESH_SECONDS = 0.1  # searches check the table for changes at most this often
_LARGE = 5_000  # skills: above this a search takes milliseconds and runs in a thread
_MANY = 200  # changes: above this they are applied in a thread
_BATCH = 64  # skills embedded per request
_SOURCES = 1_000  # that are kept in memory: a skill's source never changes
_KEPT = 20_000  # skills in the memory of this process: above this, projects not searched last are dropped

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
_Vectors: TypeAlias = tuple[bytes | None, bytes | None]
Claim: TypeAlias = Callable[[AsyncSession], Awaitable[None]]


class _ProjectIndex:
    """The index of one project's skills, as of revision `rev` of the table."""

    def __init__(self, embedder: str | None) -> None:
        self.embedder = embedder  # the model whose vectors the index compares
        self.index = SkillIndex(embedder)
        self.files: str | None = None  # that are mapped
        self.rev = 0
        self.followed = 0  # revision of the project when the table was last read
        self.checked = _NEVER  # when the table was last read
        self.lock = asyncio.Lock()  # held while the index is read or changed


@runtime_checkable
class SkillSearch(Protocol):
    """The part of the skill library that the API uses."""

    async def find(
        self, project_id: UUID, instruction: str, scenario: str | None, limit: int, *, principal: str
    ) -> list[Offer]: ...


class Library:
    """Projects never see each other's skills. Any number of processes may each have a library.

    `open_embedder` returns an embedder that may not be up yet; until it answers, skills are found by n-grams. With
    `files`, the skills of large projects are mapped from those on this host, which `IndexUpkeep` writes.
    """

    def __init__(
        self,
        sessions: Sessions,
        embedder: Embedder | None = None,
        *,
        retrieval: Retrieval = fused,
        limit: int = OFFERED,
        clock: Callable[[], float] = time.monotonic,
        open_embedder: OpenEmbedder | None = None,
        files: IndexFiles | None = None,
    ) -> None:
        self._sessions = sessions
        self._files = files
        self._clock = clock
        self._embedder = OptionalEmbedder(embedder, clock, open_embedder=open_embedder)
        self._retrieval = retrieval
        self._limit = limit
        self._projects: dict[UUID, _ProjectIndex] = {}  # the one searched last at the end
        self._sources: dict[UUID, str] = {}
        self._replacing: dict[UUID, asyncio.Task[None]] = {}  # indexes whose files are no longer the newest

    async def find(
        self,
        project_id: UUID,
        instruction: str,
        scenario: str | None = None,
        limit: int | None = None,
        *,
        principal: str = "",
        release: UUID | None = None,
        trace: RetrievalTrace | None = None,
    ) -> list[Offer]:
        """The skills most likely to help, best first, of those that the principal's tasks may be offered.

        With `release`, also of what its own tasks wrote if it is a canary. Empty if none fits. At most 0.1 s out
        of date. A `trace` keeps the scores.
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
            trace=trace,
        )
        owners = owners_for(principal, release)
        async with project.lock:
            found = await _compute(
                lambda: search(project.index.view(owners), query, self._retrieval),
                in_thread=len(project.index) > _LARGE,
            )
        return await self._with_sources(found)

    async def _with_sources(self, found: Sequence[Offer]) -> list[Offer]:
        """Without those that were withdrawn this moment."""
        known = self._sources
        unknown = [offer.skill_id for offer in found if offer.skill_id not in known]
        if unknown:
            async with direct(self._sessions) as handle:
                known.update(await skills.sources(handle, unknown))
        offers = [
            msgspec.structs.replace(offer, source=known[offer.skill_id])
            for offer in found
            if offer.skill_id in known
        ]
        while len(known) > _SOURCES:
            del known[next(iter(known))]
        return offers

    async def save(
        self,
        project_id: UUID,
        drafts: Sequence[Draft],
        provenance: SkillOrigin = SkillOrigin(),  # noqa: B008  frozen
        *,
        claim: Claim | None = None,
    ) -> list[Offer]:
        """Store validated drafts as the next versions of their names, and return the new versions.

        `admit` decides who is offered them. A draft whose source the project already offers to the principal is
        not stored again. `claim` raises, in the same transaction, if the task has another owner.
        """
        pairs = await self._vectors(drafts) or repeat(None)
        new_skills = [self._new_skill(draft, provenance, pair) for draft, pair in zip(drafts, pairs, strict=False)]
        async with self._sessions.begin() as session:
            if claim is not None:
                await claim(session)
            rows = [await admit(session, project_id, new, provenance.catalog) for new in new_skills]
        await self.refresh(project_id)
        return [offer_of(row) for row in rows if row.task_id == provenance.task_id]

    def _new_skill(self, draft: Draft, provenance: SkillOrigin, vectors: _Vectors | None) -> skills.NewSkill:
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
            query_vector=vectors[0] if vectors else None,
            source_vector=vectors[1] if vectors else None,
        )

    async def refresh(self, project_id: UUID) -> None:
        """Bring the index up to date with everything committed before this call."""
        await self._follow(project_id, self._project(project_id))

    def _project(self, project_id: UUID) -> _ProjectIndex:
        """The project's index, a new one if the embedder has changed."""
        project = self._projects.pop(project_id, None)
        if project is None or project.embedder != self._embedder.model:
            project = _ProjectIndex(self._embedder.model)
        self._projects[project_id] = project
        return project

    async def _follow(self, project_id: UUID, project: _ProjectIndex) -> None:
        called = self._clock()
        async with project.lock:
            if project.checked > called:  # another caller has just read the table
                return
            checked = self._clock()
            async with direct(self._sessions) as handle:
                latest = await skills.latest_rev(handle, project_id)
            if project.checked == _NEVER:
                await self._open(project_id, project)
            elif self._files and self._files.current(project_id) not in (None, project.files):
                self._replace(project_id)
            if latest != project.followed:
                await self._apply_changes(project_id, project)
                project.followed = latest
            project.checked = checked

    async def _open(self, project_id: UUID, project: _ProjectIndex) -> None:
        if self._files is not None:
            opened = await open_index(self._sessions, self._files, project_id, project.embedder)
            project.index = SkillIndex(project.embedder, opened.mapped)
            project.rev, project.files = opened.rev, opened.name

    def _replace(self, project_id: UUID) -> None:
        """Open the newer files of a project in the background: until then it is searched as it is."""
        if project_id not in self._replacing:
            replacing = asyncio.create_task(self._open_newer(project_id), name="open index files")
            self._replacing[project_id] = replacing
            replacing.add_done_callback(lambda _: self._replacing.pop(project_id))

    async def _open_newer(self, project_id: UUID) -> None:
        newer = _ProjectIndex(self._embedder.model)
        try:
            await self._follow(project_id, newer)
        except TRANSIENT as error:  # the next search tries again
            log.warning("index files could not be opened", project=str(project_id), cause=first_line(error))
        else:
            self._projects[project_id] = newer

    async def _apply_changes(self, project_id: UUID, project: _ProjectIndex) -> None:
        rows = await skills.read_changes(self._sessions, project_id, project.rev, project.embedder)
        if rows:
            await _compute(lambda: apply_changes(project.index, rows), in_thread=len(rows) > _MANY)
            project.rev = rows[-1].rev
        while len(self._projects) > 1 and self.in_memory > _KEPT:
            del self._projects[next(iter(self._projects))]

    @property
    def in_memory(self) -> int:
        """The number of skills of all projects that are in the memory of this process, not mapped."""
        return sum(each.index.in_memory for each in self._projects.values())

    def filling(self, pause: float = 30.0) -> Loop:
        """While entered, embeds the skills of all projects that the current embedder was not asked for yet.

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
                await skills.set_vectors(session, row.id, model, query, source)
        return 0

    async def _vectors(self, written: Sequence[Draft | tables.Skill]) -> list[_Vectors] | None:
        """Of the instruction and the source of each; None without any, and while no embedder works."""
        texts = [text for each in written for text in (_sought(each), each.source)]
        found = await self._embedder.embed(texts)
        if found is None:
            return None
        stored = [None if each is None else each.tobytes() for each in found]
        if refused := stored.count(None):
            log.warning("the embedder refused texts of skills: they are found by n-grams only", texts=refused)
        return list(zip(stored[::2], stored[1::2], strict=True))


def _sought(written: Draft | tables.Skill) -> str:
    """What instructions are compared with."""
    described = isinstance(written, tables.Skill) and written.described
    return document_of(written.name, written.instruction) if described else written.instruction


async def _compute(work: Callable[[], Result], *, in_thread: bool) -> Result:
    """Run `work`, in a thread if it takes long. Waits even if cancelled: the caller's lock guards the work."""
    if not in_thread:
        return work()
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
