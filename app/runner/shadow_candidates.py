"""Selects finished tasks that can be replayed without side effects: those that only read."""

from collections.abc import Set
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, projects, shadows
from app.errors import ConflictError
from app.gateway.approval_gate import ApprovalGate
from app.release import manifest
from app.runner.catalogs import Catalogs

_WINDOW = 1_000  # finished tasks, the newest


class _Call(msgspec.Struct, frozen=True):
    api: str


class _Turn(msgspec.Struct, frozen=True):
    calls: tuple[_Call, ...] = ()


class _Calls(msgspec.Struct, frozen=True):
    """The calls of a stored trajectory; decoding skips the rest."""

    turns: tuple[_Turn, ...]


async def request_shadows(session: AsyncSession, release: models.Release, count: int) -> int:
    """Queue replays of the project's latest read-only tasks by the release. Returns their number.

    Raises ConflictError if there is none.
    """
    catalog = await Catalogs().of(await manifest.api_documents(session, release))
    gate = ApprovalGate(projects.settings_of(await projects.by_id(session, release.project_id)).approvals)
    operations = (each for app in catalog.apps.values() for each in app.operations.values())
    safe = {each.api for each in operations if each.safe and not gate.wants(each)}
    candidates: list[UUID] = []
    latest = shadows.records(session, release.project_id, other_than=release.id, limit=_WINDOW)
    async for task_id, record in latest:
        if _only_calls(record, safe):
            candidates.append(task_id)
        if len(candidates) == count:
            break
    if not candidates:
        raise ConflictError(
            f"none of the last {_WINDOW:,} tasks that other releases finished is read-only: an operation is "
            "if it is a GET, HEAD or OPTIONS, or has `x-safe: true` in its document"
        )
    await shadows.add(session, release.id, candidates)
    return len(candidates)


def _only_calls(record: bytes, safe: Set[str]) -> bool:
    """An operation that no longer exists is not in `safe`: it cannot be called again."""
    turns = msgspec.msgpack.decode(record, type=_Calls).turns
    return all(call.api in safe for turn in turns for call in turn.calls)
