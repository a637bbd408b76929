"""Keeps what serves in line with what was decided: what passed the gate is brought to serve, canaries are judged.

Every API process has one. What two of them try at once, one does: swaps of a project exclude each other.
"""

from contextlib import suppress
from typing import Self
from uuid import UUID

import structlog

from app.db import models, projects, releases
from app.db.database import TRANSIENT, Sessions
from app.db.models import ReleaseState
from app.errors import AdapterError, AppError, ConflictError, NotFoundError
from app.loop import Loop
from app.records import Json
from app.release import canary, manifest
from app.release.promote import Promoter, SupersededError, check_compared

log = structlog.get_logger(__name__)

ACTOR = "gate"
_PAUSE = 5.0  # seconds between two looks while something waits
_IDLE = 60.0  # while nothing does: a notice may have been lost


class Keeper:
    """An async context manager: within it releases follow what the gate, and the figures of canaries, decide."""

    def __init__(
        self,
        sessions: Sessions,
        promoter: Promoter,
        prompt_hash: str,
        *,
        pause: float = _PAUSE,
        idle: float = _IDLE,
    ) -> None:
        self._sessions, self._promoter, self._prompt = sessions, promoter, prompt_hash
        self._idle = idle
        self._loop = Loop("release reconciler", self._reconcile, pause, expected=TRANSIENT)
        self._prompt_recorded = False
        self._told: dict[UUID, str] = {}  # why a release still waits, as it was logged

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    def wake(self) -> None:
        """A release may have passed the gate. Missing a call costs a minute at most."""
        self._loop.wake()

    async def _reconcile(self) -> float | None:
        if not self._prompt_recorded:
            await self._record_prompt()
            self._prompt_recorded = True
        return None if await self._look() else self._idle

    async def _record_prompt(self) -> None:
        """What serves since an earlier version of this program, serves with this version's prompt from now on."""
        async with self._sessions() as session:
            owners = [project.id for project in await projects.list_all(session)]
        for project_id in owners:
            with suppress(NotFoundError):  # the project was deleted meanwhile
                async with self._sessions.begin() as session:
                    await manifest.prompt_changed(session, project_id, self._prompt)

    async def _look(self) -> bool:
        """Is there something that will have to be looked at again?"""
        async with self._sessions() as session:
            passed = await releases.in_state(session, ReleaseState.PASSED)
        for release in passed:
            await self._bring(release)
        async with self._sessions() as session:
            serving = await releases.in_state(session, ReleaseState.CANARY)
            left = await releases.in_state(session, ReleaseState.PASSED)
        for release in serving:
            await self._settle(release)
        return bool(serving or left)

    async def _bring(self, release: models.Release) -> None:
        try:
            if release.canary_percent:
                await canary.begin(self._promoter, self._sessions, release.id, release.canary_percent, ACTOR)
            else:
                await self._promoter.activate(release.id, ACTOR, skills="keep", check=check_compared)
            log.info("a release that passed the gate serves", release=release.number, model=release.model)
        except AdapterError as error:
            reason = f"the gate was for it, but it cannot be served: {error}"
            await self._decide(release, ReleaseState.REJECTED, {"verdict": "refused", "reason": reason})
        except SupersededError as error:
            await self._decide(release, ReleaseState.CANDIDATE, {"next": str(error)})
        except AppError as error:  # a server is down or full, or another process is at it
            self._wait(release, error)

    async def _settle(self, release: models.Release) -> None:
        try:
            await canary.settle(self._promoter, self._sessions, release.id)
        except AppError as error:
            self._wait(release, error)

    async def _decide(self, release: models.Release, state: ReleaseState, found: dict[str, Json]) -> None:
        """Unless someone else has decided about it meanwhile, or its project was deleted."""
        evidence = (release.evidence or {}) | found
        log.warning("a release that passed the gate does not serve", release=release.number, **found)
        with suppress(ConflictError, NotFoundError):
            async with self._sessions.begin() as session:
                if state is ReleaseState.REJECTED:
                    await releases.reject(session, release.id, evidence)
                else:
                    await releases.reopen(session, release.id, evidence)

    def _wait(self, release: models.Release, error: AppError) -> None:
        if self._told.get(release.id) != str(error):
            self._told[release.id] = str(error)
            log.warning("a release waits", release=release.number, state=release.state, cause=str(error))
