"""Activates releases: model servers load and verify the weights, then the rows change in one transaction."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AdapterError, ConflictError, EngineError
from app.base.values import Json, Probe, hosted_id
from app.db import adapters, releases, tables
from app.db.database import Sessions
from app.db.lease import swap_lock
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit
from app.release import activation, manifest
from app.release.activation import ActivationChanges
from app.release.manifest import SkillsMode

ActivationCheck = Callable[[tables.Release, tables.Release | None], None]
"""Raises ConflictError if a release may not replace the active one. Called while both are locked."""

OnActivated = Callable[[AsyncSession, tables.Release, tables.Release | None], Awaitable[None]]
"""Writes more in the transaction that activates a release, given this one and the one that served before."""

OnChanges = Callable[[ActivationChanges], object]
"""Is given what an activation changes, once no other one can come between. It may still fail."""


class Swapper(Protocol):
    """Loads weights on the model servers."""

    async def swap(self, model: str, probe: Probe | None) -> msgspec.Struct:
        """All servers have loaded and verified the weights when this returns. The report is for the audit log.

        Raises AdapterError or EngineError; then nothing has changed.
        """
        ...


class SupersededError(ConflictError):
    """The baseline of a release is no longer active, so its comparison is void."""


class Promoter:
    """Activates releases, one per project at a time across all processes."""

    def __init__(self, sessions: Sessions, swapper: Swapper, prompt_hash: str) -> None:
        """`prompt_hash` is of the prompt that this process serves with."""
        self._sessions, self._swapper, self._prompt = sessions, swapper, prompt_hash

    async def activate(
        self,
        release_id: UUID,
        actor: str,
        *,
        allow_rejected: bool = False,
        skills: SkillsMode = "restore",
        check: ActivationCheck | None = None,
        on_activated: OnActivated | None = None,
        on_changes: OnChanges | None = None,
    ) -> tables.Release:
        """New tasks are pinned to it when this returns, and the swap is in the audit log. Safe to repeat.

        Raises NotFoundError, ConflictError while another release of the project is being activated, if one was
        while a hosted model was asked, and for a rejected one (unless `allow_rejected`), what `check` raises, and
        AdapterError or EngineError if the servers cannot load or verify it: then nothing has changed but the audit
        log.
        """
        async with self._sessions() as session:
            release = await releases.get(session, release_id)
            await releases.check_can_serve(session, release, allow_rejected=allow_rejected)
            before = await releases.find_active(session, release.project_id)
        if release.state is ReleaseState.ACTIVE:
            return release
        async with self.loaded(release, actor) as report:
            async with self._sessions.begin() as session:
                row = await releases.locked(session, release_id)
                if row.state is ReleaseState.ACTIVE:  # another process was first
                    return row
                previous = await releases.find_active(session, release.project_id)
                if check is not None:
                    check(row, previous)
                _check_unmoved(row, before, previous)
                if on_changes is not None:
                    on_changes(await activation.changes_of(session, row, previous, skills))
                overridden = await releases.check_can_serve(session, row, allow_rejected=allow_rejected)
                row = await releases.activate(session, release_id, allow_rejected=allow_rejected)
                changed = await manifest.record_activation(session, row, previous, self._prompt, skills=skills)
                previous_number = previous.number if previous else None
                detail = {"previous": previous_number, "swap": report, "serves": _parts(row), **changed}
                detail |= overriding(overridden)
                await audit.add(session, row.project_id, row.id, actor, AuditAction.ACTIVATED, detail)
                if on_activated is not None:
                    await on_activated(session, row, previous)
                await session.refresh(row)
            return row

    @asynccontextmanager
    async def loaded(self, release: tables.Release, actor: str) -> AsyncIterator[Json]:
        """The report of the swap, while no other release of the project can be activated.

        A hosted model is asked before: nothing else waits for an endpoint that may be silent. Raises ConflictError
        while another release is being activated, and as `load_weights`.
        """
        asked = await self.load_weights(release, actor) if hosted_id(release.model) is not None else None
        async with swap_lock(self._sessions, release.project_id, release.number):
            yield await self.load_weights(release, actor) if asked is None else asked

    async def load_weights(self, release: tables.Release, actor: str) -> Json:
        """The report of the swap. Raises AdapterError or EngineError, after writing it to the audit log."""
        async with self._sessions() as session:
            probe = await adapters.probe(session, release.model)
        try:
            report = await self._swapper.swap(release.model, probe)
        except (AdapterError, EngineError) as error:
            detail = {"error": type(error).__name__, "reason": str(error)}
            about = release.project_id, release.id, actor, AuditAction.REFUSED
            async with self._sessions.begin() as session:
                await audit.add_once(session, *about, detail)
            raise
        return msgspec.to_builtins(report)


def _check_unmoved(release: tables.Release, before: tables.Release | None, active: tables.Release | None) -> None:
    """Raises ConflictError if another release, such as a roll-back, serves than when a hosted model was asked."""
    if hosted_id(release.model) is None or active is None or (before is not None and before.id == active.id):
        return
    raise ConflictError(
        f"release {active.number} was activated while the hosted model of release {release.number} was asked: "
        "activate it again if it is to serve"
    )


def check_baseline(release: tables.Release, active: tables.Release | None) -> None:
    """Raises SupersededError unless the active release has the weights that the gate compared it with, whatever
    its prompt and tools.
    """
    against: Mapping[str, Json] = (release.evidence or {}).get("compared_with", {})
    if active is not None and against.get("model") != active.model:
        raise SupersededError(
            f"it was compared with release {against.get('number')}, but release {active.number}, with other "
            "weights, was activated since: train again, or activate it by hand "
            f"(POST /v1/releases/{release.id}/activate)"
        )


def overriding(rejected: tables.Release | None) -> dict[str, Json]:
    """The detail of an audit entry about a release that serves although its weights were rejected."""
    return {} if rejected is None else {"overrides_rejection_of": rejected.number}


def _parts(release: tables.Release) -> dict[str, Json]:
    return {name: getattr(release, name) for name in ("model", "skills", "tools", "prompt")}
