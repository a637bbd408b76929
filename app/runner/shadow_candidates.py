"""Which finished tasks can be done again without side effects: those that only read."""

from collections.abc import Set
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, shadows
from app.errors import ConflictError
from app.release import manifest
from app.runner.catalogs import Catalogs

_LOOKED_AT = 1_000  # finished tasks, the newest


class _Call(msgspec.Struct, frozen=True):
    api: str


class _Turn(msgspec.Struct, frozen=True):
    calls: tuple[_Call, ...] = ()


class _Calls(msgspec.Struct, frozen=True):
    """What a stored trajectory called; the rest of it is skipped."""

    turns: tuple[_Turn, ...]


async def ask_for(session: AsyncSession, release: models.Release, count: int) -> int:
    """Have the release do the project's latest finished tasks again, those that only read. Returns how many.

    Raises ConflictError where there is none.
    """
    catalog = await Catalogs().of(await manifest.document_set(session, release))
    safe = {each.api for app in catalog.apps.values() for each in app.operations.values() if each.safe}
    found: list[UUID] = []
    latest = shadows.records(session, release.project_id, other_than=release.id, limit=_LOOKED_AT)
    async for task_id, record in latest:
        if _only_calls(record, safe):
            found.append(task_id)
        if len(found) == count:
            break
    if not found:
        raise ConflictError(
            f"none of the last {_LOOKED_AT:,} tasks that other releases finished only reads: an operation does if "
            "it is a GET, HEAD or OPTIONS, or its document says `x-safe: true`"
        )
    await shadows.add(session, release.id, found)
    return len(found)


def _only_calls(record: bytes, safe: Set[str]) -> bool:
    """An operation that is there no more is not among the safe ones: it cannot be called again."""
    turns = msgspec.msgpack.decode(record, type=_Calls).turns
    return all(call.api in safe for turn in turns for call in turn.calls)
