"""Several engines of one trainer as one."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from app.engine.protocol import Completion, Sampling
from app.engine.routing import RecentPrefixes, ReplicaLoad, choose_replica, hash_blocks
from trainer.engines.subprocess_engine import SubprocessEngine


class EnginePool:
    """Does what one of them does. A prompt goes where its beginning is cached, unless others are much idler."""

    def __init__(self, engines: Sequence[SubprocessEngine]) -> None:
        self._members = [_Member(engine) for engine in engines]
        self.max_length = min(engine.max_length for engine in engines)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        blocks = hash_blocks(model, prompt_ids)
        loads = [ReplicaLoad(each.in_flight, each.recent.match(blocks)) for each in self._members]
        member = self._members[choose_replica(loads)]
        member.recent.add(blocks)
        member.in_flight += 1
        try:
            return await member.engine.complete(prompt_ids, model=model, sampling=sampling)
        finally:
            member.in_flight -= 1

    async def load_adapter(self, name: str, path: Path) -> None:
        await asyncio.gather(*(each.engine.load_adapter(name, path) for each in self._members))

    async def unload_adapter(self, name: str) -> None:
        await asyncio.gather(*(each.engine.unload_adapter(name) for each in self._members))


class _Member:
    def __init__(self, engine: SubprocessEngine) -> None:
        self.engine, self.in_flight, self.recent = engine, 0, RecentPrefixes()
