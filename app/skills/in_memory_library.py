"""A skill library without a database, for one chain in training: what is saved in it is discarded."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from uuid import UUID, uuid4

import msgspec

from app.apis.calls.skill_guard import SkillManifest
from app.base.values import Offer
from app.engine.protocol import Embedder
from app.skills.extract import Draft
from app.skills.search import (
    OFFERED,
    IndexedSkill,
    OptionalEmbedder,
    Query,
    Retrieval,
    SkillIndex,
    fused,
    needs_embeddings,
    search,
)


class GrownSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that was there before, with its source, as tasks are offered it."""

    indexed: IndexedSkill
    manifest: SkillManifest
    proven: bool = False  # most of its latest tasks succeeded, so it is offered although a new version is written


class InMemoryLibrary:
    """Retrieves like `Library`. One per chain: chains never share the skills they write."""

    def __init__(
        self,
        embedder: Embedder | None = None,
        *,
        retrieval: Retrieval = fused,
        limit: int = OFFERED,
        grown: Sequence[GrownSkill] = (),
    ) -> None:
        """A task is offered at most `limit` skills."""
        self._embedder = OptionalEmbedder(embedder)
        self._retrieval = retrieval
        self.limit = limit
        self._index = SkillIndex(self._embedder.model)
        self._index.put([each.indexed for each in grown])
        self._grown = len(grown)
        self._active = {each.indexed.offer.name: each.indexed.offer for each in grown}  # by name
        self._proven = frozenset(each.indexed.offer.name for each in grown if each.proven)
        self.manifests = {each.indexed.offer.skill_id: each.manifest for each in grown}

    def __len__(self) -> int:
        """Of the names that were not there before."""
        return len(self._active) - self._grown

    async def find(self, instruction: str, scenario: str | None = None, limit: int | None = None) -> list[Offer]:
        """The skills most likely to help, best first; empty if none fits."""
        vectors = None
        if self._index.has_vectors and needs_embeddings(self._retrieval):
            vectors = await self._embedder.embed([instruction])
        query = Query(
            instruction=instruction,
            scenario=scenario,
            vector=vectors[0] if vectors else None,
            limit=self.limit if limit is None else limit,
        )
        return search(self._index, query, self._retrieval)

    async def save(
        self,
        drafts: Sequence[Draft],
        scenario: str | None = None,
        manifests: Mapping[str, SkillManifest] = MappingProxyType({}),
    ) -> list[Offer]:
        """Keep validated drafts, with their manifests by name. A known name is replaced by its next version.

        Unless it was there before and has proved itself: then the new version waits, and no task is offered it.
        """
        saved = [await self._save(draft, scenario) for draft in drafts]
        self.manifests |= {each.skill_id: manifests[each.name] for each in saved if each.name in manifests}
        return saved

    async def _save(self, draft: Draft, scenario: str | None) -> Offer:
        previous = self._active.get(draft.name)
        offer = Offer(
            skill_id=uuid4(),
            name=draft.name,
            version=previous.version + 1 if previous else 1,
            signature=draft.signature,
            source=draft.source,
            instruction=draft.instruction,
        )
        if draft.name in self._proven:
            return offer
        vectors = await self._embedder.embed([draft.instruction, draft.source]) or (None, None)
        gone: list[UUID] = [previous.skill_id] if previous else []
        self._index.remove(gone)
        self._active[draft.name] = offer
        self._index.put(
            [
                IndexedSkill(
                    offer=offer,
                    slots=draft.slots,
                    scenario=scenario,
                    embedder=self._embedder.model,
                    query_vector=vectors[0],
                    source_vector=vectors[1],
                )
            ]
        )
        return offer
