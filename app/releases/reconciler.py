"""Reconciles active releases with decisions: activates those that passed the gate, evaluates canaries and watches.

Every API process runs one. They do not conflict: swaps of a project exclude each other.
"""

import time
from contextlib import suppress
from uuid import UUID

import structlog

from app.agent.prompts import HOSTED, hosted_prompt, prompt_of, prompt_text
from app.base.errors import AdapterError, AppError, ConflictError, NotFoundError, UnreadableAdapterError
from app.base.loop import Loop, Looping
from app.base.values import Json
from app.db import runners, tables
from app.db.database import TRANSIENT, Sessions
from app.db.lease import SwapUnderWayError
from app.db.tables import ReleaseState
from app.projects import store as projects
from app.releases import canary, manifest, manifest_store, trials_store, watch
from app.releases import store as releases
from app.releases.promotion import Promoter, SupersededError, check_baseline
from app.releases.watch import WatchAction

log = structlog.get_logger(__name__)

ACTOR = "gate"
_PAUSE = 5.0  # seconds between rounds while a release waits
_IDLE = 60.0  # while none does: a notification may have been lost


class ReleaseReconciler(Looping):
    """An async context manager that follows the decisions of the gate, of canaries and of watches."""

    def __init__(
        self,
        sessions: Sessions,
        promoter: Promoter,
        prompt_hash: str,
        *,
        prompt_text: str = "",
        pause: float = _PAUSE,
        idle: float = _IDLE,
    ) -> None:
        self._sessions, self._promoter, self._prompt = sessions, promoter, prompt_hash
        self._prompt_text = prompt_text
        self._idle, self._next_watches = idle, 0.0
        self._loop = Loop("release reconciler", self._reconcile, pause, expected=TRANSIENT)
        self._prompt_recorded = False
        self._logged_causes: dict[UUID, str] = {}  # why a release waits, as last logged

    def wake(self) -> None:
        """Call when a release may have passed the gate. A missed call delays it by a minute at most."""
        self._loop.wake()

    async def _reconcile(self) -> float | None:
        if not self._prompt_recorded:
            self._prompt_recorded = await self._record_prompt()
        waits = await self._reconcile_states() or not self._prompt_recorded
        if (now := time.monotonic()) >= self._next_watches:
            await self._apply_watch_decisions()
            self._next_watches = now + self._idle
        return None if waits else self._idle

    async def _record_prompt(self) -> bool:
        """Give active releases of an earlier version of this program the prompt of this one. False: runners of
        that version still serve them.
        """
        async with self._sessions.begin() as session:
            if self._prompt_text:
                await manifest_store.store_prompt(session, self._prompt, self._prompt_text)
                await manifest_store.store_prompt(session, hosted_prompt(), prompt_text(HOSTED, None))
            owners = [project.id for project in await projects.list_all(session)]
            in_use = await runners.prompts(session)
        recorded = True
        for project_id in owners:
            with suppress(NotFoundError):  # the project was deleted
                async with self._sessions.begin() as session:
                    release = await manifest.update_prompt(session, project_id, self._prompt, in_use)
                recorded = recorded and release.prompt == prompt_of(release.model, self._prompt)
        return recorded

    async def _reconcile_states(self) -> bool:
        """Return whether a release still waits or is a canary."""
        async with self._sessions() as session:
            passed = await releases.in_state(session, ReleaseState.PASSED)
        for release in passed:
            await self._activate(release)
        async with self._sessions() as session:
            serving = await releases.in_state(session, ReleaseState.CANARY)
            left = await releases.in_state(session, ReleaseState.PASSED)
        for release in serving:
            try:
                await canary.apply_decision(self._promoter, self._sessions, release.id)
            except AppError as error:
                self._log_waiting(release, error)
        return bool(serving or left)

    async def _activate(self, release: tables.Release) -> None:
        try:
            if release.canary_percent:
                await canary.begin(
                    self._promoter, self._sessions, release.id, release.canary_percent, ACTOR, check=_check_passed
                )
            else:
                await self._promoter.activate(
                    release.id, ACTOR, skills="keep", check=_check_activation, on_activated=watch.begin
                )
            log.info("activated a release that passed the gate", release=release.number, model=release.model)
        except UnreadableAdapterError as error:
            await self._note_waiting(release, error)
        except AdapterError as error:
            reason = f"it passed the gate, but it cannot be served: {error}"
            await self._record_outcome(release, ReleaseState.REJECTED, {"verdict": "refused", "reason": reason})
        except SupersededError as error:
            await self._record_outcome(release, ReleaseState.CANDIDATE, {"next": str(error)})
        except SwapUnderWayError:
            log.debug("another process activates a release of the project", release=release.number)
        except AppError as error:  # a server is down or full
            await self._note_waiting(release, error)

    async def _apply_watch_decisions(self) -> None:
        """Evaluate each watch. They last for days, and read thousands of tasks: not in every round."""
        async with self._sessions() as session:
            watched = await trials_store.all_open(session)
        for release in watched:
            try:
                status = await watch.apply_decision(self._promoter, self._sessions, release.id)
            except AppError as error:
                self._log_waiting(release, error)
            else:
                if status.decision.action is WatchAction.ROLL_BACK:
                    log.warning("rolled a release back", release=release.number, reason=status.decision.reason)

    async def _record_outcome(
        self, release: tables.Release, state: ReleaseState, evidence: dict[str, Json]
    ) -> None:
        """Do nothing if someone else decided first, or the project was deleted."""
        evidence = (release.evidence or {}) | evidence
        log.warning("a release that passed the gate was not activated", release=release.number, **evidence)
        with suppress(ConflictError, NotFoundError):
            async with self._sessions.begin() as session:
                _check_passed(await releases.locked(session, release.id))
                if state is ReleaseState.REJECTED:
                    await releases.reject(session, release.id, evidence)
                else:
                    await releases.reopen(session, release.id, evidence)

    async def _note_waiting(self, release: tables.Release, error: AppError) -> None:
        """In the log and in its evidence: it may wait until somebody mends the cause. Once, as the note wakes
        other processes, which may have another cause.
        """
        if self._logged_causes.get(release.id) != str(error):
            with suppress(NotFoundError):  # the project was deleted
                async with self._sessions.begin() as session:
                    await releases.note_waiting(session, release.id, str(error))
        self._log_waiting(release, error)

    def _log_waiting(self, release: tables.Release, error: AppError) -> None:
        if self._logged_causes.get(release.id) != str(error):
            self._logged_causes[release.id] = str(error)
            log.warning("a release waits", release=release.number, state=release.state, cause=str(error))


def _check_activation(release: tables.Release, active: tables.Release | None) -> None:
    _check_passed(release)
    check_baseline(release, active)


def _check_passed(release: tables.Release) -> None:
    """Raises ConflictError if a release that had passed the gate was decided about since it was read."""
    if release.state is not ReleaseState.PASSED:
        raise ConflictError(f"release {release.number} is {release.state}: someone else decided first")
