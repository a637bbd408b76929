"""Bringing a release to serve: model servers prove that they have its weights, then the rows change at once."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import adapters, audit, models, releases
from app.db.advisory_locks import swap_lock
from app.db.database import Sessions
from app.db.models import AuditAction, ReleaseState
from app.errors import AdapterError, ConflictError, EngineError
from app.records import Json, Probe
from app.release import manifest
from app.release.manifest import Skills

Check = Callable[[models.Release, models.Release | None], None]
"""Raises ConflictError where a release may not follow the one that is active. Asked once neither can change."""

Also = Callable[[AsyncSession, models.Release], Awaitable[None]]
"""What is written in the transaction in which a release becomes active: all of it is there, or none."""


class Swapper(Protocol):
    """The model servers, as releases see them."""

    async def swap(self, model: str, probe: Probe | None) -> msgspec.Struct:
        """All of them have the weights and have proven it when this returns; its receipt is for the log.

        Raises AdapterError or EngineError; then nothing that serves has changed.
        """
        ...


class SupersededError(ConflictError):
    """What a release was compared with serves no more, so the comparison says nothing."""


class Promoter:
    """Activates releases. One of a project at a time, whichever process does it."""

    def __init__(self, sessions: Sessions, swap: Swapper, prompt_hash: str) -> None:
        """`prompt_hash` is of the prompt that this process serves with."""
        self._sessions, self._swap, self._prompt = sessions, swap, prompt_hash

    async def activate(
        self,
        release_id: UUID,
        actor: str,
        *,
        allow_rejected: bool = False,
        skills: Skills = "restore",
        check: Check | None = None,
        also: Also | None = None,
    ) -> models.Release:
        """New tasks are pinned to it when this returns, and a receipt is in the log. Again is no mistake, and
        writes nothing.

        Raises NotFoundError, ConflictError while another release of the project is brought to serve and for one
        that was rejected (unless `allow_rejected`), what `check` does, and AdapterError or EngineError where the
        servers do not prove that they have it: then nothing that serves has changed, and the log tells of it.
        """
        async with self._sessions() as session:
            release = await releases.get(session, release_id)
            releases.check_can_serve(release, allow_rejected=allow_rejected)
        if release.state is ReleaseState.ACTIVE:
            return release
        async with swap_lock(self._sessions, release.project_id, release.number):
            receipt = await self.prove(release, actor)
            async with self._sessions.begin() as session:
                row = await releases.locked(session, release_id)
                if row.state is ReleaseState.ACTIVE:  # another process was first
                    return row
                former = await releases.find_active(session, release.project_id)
                if check is not None:
                    check(row, former)
                row = await releases.activate(session, release_id, allow_rejected=allow_rejected)
                changed = await manifest.serve(session, row, former, self._prompt, skills=skills)
                over = former.number if former else None
                detail = {"over": over, "swap": receipt, "serves": _made_of(row), **changed}
                await audit.add(session, row.project_id, row.id, actor, AuditAction.ACTIVATED, detail)
                if also is not None:
                    await also(session, row)
                await session.refresh(row)
            return row

    async def prove(self, release: models.Release, actor: str) -> Json:
        """The receipt of servers that have its weights. Raises AdapterError or EngineError, and tells the log."""
        async with self._sessions() as session:
            probe = await adapters.probe(session, release.model)
        try:
            receipt = await self._swap.swap(release.model, probe)
        except (AdapterError, EngineError) as error:
            detail = {"error": type(error).__name__, "reason": str(error)}
            about = release.project_id, release.id, actor, AuditAction.REFUSED
            async with self._sessions.begin() as session:
                await audit.add_once(session, *about, detail)
            raise
        return msgspec.to_builtins(receipt)


def check_compared(release: models.Release, active: models.Release | None) -> None:
    """Raises SupersededError unless the weights that the gate compared it with serve, in whatever release: they
    may serve on with another prompt or other tools.
    """
    against: Mapping[str, Json] = (release.evidence or {}).get("compared_with", {})
    if active is not None and against.get("model") != active.model:
        raise SupersededError(
            f"it was compared with release {against.get('number')}, but release {active.number}, with other "
            "weights, was activated since: train again, or activate it by hand "
            f"(POST /v1/releases/{release.id}/activate)"
        )


def _made_of(release: models.Release) -> dict[str, Json]:
    return {name: getattr(release, name) for name in ("model", "skills", "tools", "prompt")}
