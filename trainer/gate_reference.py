"""The reference of a gate: the last release that has proven a gain, or the next since that can be evaluated."""

from collections.abc import Sequence

import msgspec

from app.db import releases, tables
from app.db.database import Sessions
from app.errors import AdapterError, EngineRefusalError
from app.release.reference import since_reference
from trainer.evaluation.paired import Evaluator


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A release, and those that would have been the reference if an engine could still load their adapters."""

    release: tables.Release
    is_examined: bool  # its weights are neither the incumbent's nor the candidate's
    gone: Sequence[tables.Release] = ()

    @property
    def left_out(self) -> str:
        """The end of a sentence; empty if nothing was."""
        if not self.gone:
            return ""
        numbers = ", ".join(str(release.number) for release in self.gone)
        return f"; the reference is not release {numbers}: the adapter is gone, or of another base model"


async def find_reference(
    sessions: Sessions, evaluator: Evaluator, incumbent: tables.Release, candidate: tables.Release
) -> Reference:
    """Of the incumbent. Raises EngineError if an adapter may be there, but cannot be fetched or loaded now."""
    async with sessions() as session:
        history = await releases.of_project(session, incumbent.project_id)
    gone: list[tables.Release] = []
    for release in since_reference(history, incumbent):
        if release.model in (incumbent.model, candidate.model):
            return Reference(release=release, is_examined=False, gone=gone)
        if await _loads(sessions, evaluator, release):
            return Reference(release=release, is_examined=True, gone=gone)
        gone.append(release)
    return Reference(release=incumbent, is_examined=False, gone=gone)


async def _loads(sessions: Sessions, evaluator: Evaluator, release: tables.Release) -> bool:
    async with sessions() as session:
        adapter = await session.get(tables.Adapter, release.model)
    if adapter is not None and adapter.base != evaluator.base:
        return False
    try:
        await evaluator.load(release.model)
    except (AdapterError, EngineRefusalError):
        return False
    return True
