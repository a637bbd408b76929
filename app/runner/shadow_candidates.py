"""Selects finished tasks that can be replayed without side effects: those that only read."""

from collections.abc import Set
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.documents.reader import DocumentReader
from app.base.errors import ConflictError
from app.db import tables
from app.projects import store as projects
from app.releases import manifest_store, tools, trials_store

_WINDOW = 1_000  # finished tasks, the newest


class _Call(msgspec.Struct, frozen=True):
    api: str


class _Turn(msgspec.Struct, frozen=True):
    calls: tuple[_Call, ...] = ()


class _Calls(msgspec.Struct, frozen=True):
    """The calls of a stored trajectory; decoding skips the rest."""

    turns: tuple[_Turn, ...]


async def request_shadows(
    session: AsyncSession, reader: DocumentReader, release: tables.Release, count: int
) -> int:
    """Queue replays of the project's latest read-only tasks by the release. Returns their number.

    The transaction that was open has ended then. Raises ConflictError if there is no such task.
    """
    safe = await _safe_operations(session, reader, release)
    candidates: list[UUID] = []
    latest = trials_store.records(session, release.project_id, other_than=release.id, limit=_WINDOW)
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
    await trials_store.add(session, release.id, candidates)
    return len(candidates)


async def _safe_operations(session: AsyncSession, reader: DocumentReader, release: tables.Release) -> set[str]:
    """Those that only read and wait for nobody's approval."""
    rules = projects.settings_of(await projects.by_id(session, release.project_id)).approvals
    safe: set[str] = set()
    for api in await tools.api_documents(session, release):
        content = await manifest_store.document(session, api.id, api.digest)
        await session.commit()  # no transaction is held while a document is read
        for name, each in (await reader.traits(api.name, content, api.digest, api.presentation)).items():
            known, *former = (f"{api.name}.{one}" for one in (name, *each.former_names))
            if each.safe and not rules.wants(known, safe=True, risk=each.risk, former=former, own=each.approval):
                safe.add(known)
    return safe


def _only_calls(record: bytes, safe: Set[str]) -> bool:
    """An operation that no longer exists is not in `safe`: it cannot be called again."""
    turns = msgspec.msgpack.decode(record, type=_Calls).turns
    return all(call.api in safe for turn in turns for call in turn.calls)
