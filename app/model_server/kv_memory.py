"""Blocks of the KV cache for generations: who is admitted, who shares them, and what is kept when one ends."""

from collections.abc import Sequence

import msgspec
import numpy as np

from app.model_server.block_pool import BlockPool
from app.model_server.generation import Generation
from app.model_server.kv_cache import BLOCK, SINK, PagedCache
from app.model_server.prefix_cache import MIN_PREFIX, PrefixCache, as_ids, common_prefix


class PrefixMatch(msgspec.Struct, frozen=True):
    """The first `tokens` of a prompt are cached in these blocks."""

    tokens: int
    blocks: Sequence[int]


class KvMemory:
    """A generation is admitted once the blocks for its prompt and all of its max_tokens are guaranteed, so that
    none is ever interrupted; each block is allocated when its first position is needed. Others keep away from
    those that follow it while they can.
    """

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        self.prefixes = PrefixCache(self._keep, self._drop)
        self.pool = BlockPool(range(SINK + 1, cache.count), self.prefixes.drop_oldest)
        self._reserved = 0  # blocks that admitted generations may still allocate
        self._claims: dict[Generation, range] = {}  # where each goes on, so that its blocks are consecutive

    @property
    def tokens(self) -> int:
        """The longest sequence that fits."""
        return self.pool.size * BLOCK

    @property
    def usage(self) -> float:
        """The part of the blocks that running generations hold."""
        return self.pool.in_use / self.pool.size

    def match(self, generation: Generation, running: Sequence[Generation]) -> PrefixMatch:
        """The longest prefix of the prompt computed with the same weights, by a finished or a running row.

        The last token must run, for its logits.
        """
        ids = generation.prompt[:-1]
        count, blocks = self.prefixes.longest_match(generation.adapter, ids)
        for other in running:
            if other.start == generation.start and (shared := common_prefix(other.prompt, ids)) > count:
                count, blocks = shared, other.blocks
        return PrefixMatch(count, blocks) if count >= MIN_PREFIX else PrefixMatch(0, ())

    def may_evict(self, generation: Generation) -> bool:
        """Whether it may cost cached prefixes to admit it."""
        return self._reserved + _most_blocks(generation) > self.pool.free

    def cached_tokens(self, generation: Generation) -> int:
        """How many of its first tokens are cached, as of now."""
        if generation.cached_version != self.prefixes.version:
            generation.cached = self.prefixes.shared_tokens(generation.adapter, generation.prompt)
            generation.cached_version = self.prefixes.version
        return generation.cached

    def admit(self, generation: Generation, match: PrefixMatch) -> bool:
        """False if it has to wait until others finish. Full blocks are shared, the last one is copied."""
        full, rest = divmod(match.tokens, BLOCK)
        shared, needed = match.blocks[:full], _most_blocks(generation)
        if self.pool.in_use + self._reserved + needed - self.pool.held(shared) > self.pool.size:
            return False
        self.pool.hold(shared)
        generation.blocks, generation.computed = list(shared), match.tokens
        self._reserved += needed - full
        if rest:
            # Eviction may free the source, and hand it out as the target: then there is nothing to copy.
            self._allocate(generation)
            self._cache.copy(match.blocks[full], generation.blocks[full])
        return True

    def extend(self, generation: Generation, length: int) -> None:
        """Allocate the blocks of the first `length` positions."""
        while len(generation.blocks) * BLOCK < length:
            self._allocate(generation)

    def release(self, generation: Generation, *, keep: bool) -> None:
        """Keep what has run of a generation that ends for others, as long as there is room."""
        if keep:
            length = len(generation.prompt) + len(generation.ids) - 1 if generation.ids else generation.computed
            ids = np.concatenate([generation.prompt, as_ids(generation.ids)])[:length]
            self.prefixes.add(generation.adapter, ids, tuple(generation.blocks[: -(-length // BLOCK)]))
        self._free(generation)

    def discard(self, generation: Generation) -> None:
        """Free the blocks of a generation whose values are not finite."""
        if freed := self._free(generation):
            self._cache.zero(freed)

    def _allocate(self, generation: Generation) -> None:
        claim = self._claims.pop(generation, None)
        if not claim or not self.pool.is_free(claim[0]):
            wanted = _most_blocks(generation) - len(generation.blocks)
            claim = self.pool.find_run(wanted, self._claims.values())
        self.pool.hold(claim[:1])
        generation.blocks.append(claim[0])
        self._claims[generation] = claim[1:]
        self._reserved -= 1

    def _free(self, generation: Generation) -> list[int]:
        self._reserved -= _most_blocks(generation) - len(generation.blocks)
        self._claims.pop(generation, None)
        blocks, generation.blocks = generation.blocks, []
        return self.pool.release(blocks)

    def _keep(self, blocks: Sequence[int]) -> None:
        self.pool.keep(blocks)

    def _drop(self, blocks: Sequence[int]) -> None:
        self.pool.drop(blocks)


def _most_blocks(generation: Generation) -> int:
    """The last token that is sampled does not run."""
    return -(-(len(generation.prompt) + generation.max_tokens - 1) // BLOCK)
