"""Which skills are put before a task: those that fit it, and that the sandbox can load."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import structlog

from app.agent.loop import Origin
from app.db import events, models, offers, task_queue
from app.db.database import Sessions
from app.errors import HostError, SandboxError
from app.records import Json, Offer
from app.runner.task_journal import told_of
from app.sandbox.protocol import Function, Limits, Sandbox
from app.skills.library import Library

log = structlog.get_logger(__name__)

Apis = Mapping[str, Sequence[str]]
"""The operations of each app."""

_Broken = list[tuple[Offer, str]]
"""Offers that do not load, each with the reason."""


class Offering:
    """Tries every skill once in this process: while source and APIs stay the same, what has loaded loads again.

    One that does not load is left out, logged and told as an event of the task. It never stops the task.
    """

    def __init__(self, sessions: Sessions, library: Library, sandbox: Sandbox, limits: Limits) -> None:
        self._sessions = sessions
        self._library = library
        self._sandbox = sandbox
        self._limits = limits
        self._loaded: set[tuple[UUID, int]] = set()

    async def choose(
        self, row: models.Task, origin: Origin, owner: str, *, apis: Apis, limit: int
    ) -> tuple[Offer, ...]:
        """A resumed task keeps the skills it began with, also if it began with none.

        Raises ConflictError where another runner has the task.
        """
        async with self._sessions() as session:
            earlier = await offers.offered(session, row.id)
        if earlier or origin.recorded or origin.begun or not row.use_skills:
            return tuple((await self._try(row, earlier, apis))[0])
        found = await self._library.find(row.project_id, row.instruction, row.scenario, limit)
        good, broken = await self._try(row, found, apis)
        async with self._sessions.begin() as session:
            await task_queue.hold(session, row.id, owner)
            await offers.record(session, row.id, good)
            for offer in good:
                await events.append(session, row.id, "skill", told_of("offered", offer))
            for offer, reason in broken:
                await events.append(session, row.id, "skill", told_of("left_out", offer) | {"reason": reason})
        return tuple(good)

    async def again(self, row: models.Task, *, apis: Apis) -> tuple[Offer, ...]:
        """What the task was offered when it was done, as far as it still loads. Nothing is written down."""
        async with self._sessions() as session:
            earlier = await offers.offered(session, row.id)
        return tuple((await self._try(row, earlier, apis))[0])

    async def _try(self, row: models.Task, found: Sequence[Offer], apis: Apis) -> tuple[list[Offer], _Broken]:
        good: list[Offer] = []
        broken: _Broken = []
        for offer in found:
            reason = await self._why_not(offer, apis)
            if reason is None:
                good.append(offer)
            else:
                broken.append((offer, reason))
                log.warning("a skill is left out", task=str(row.id), skill=str(offer.skill_id), cause=reason)
        return good, broken

    async def _why_not(self, offer: Offer, apis: Apis) -> str | None:
        """None: it loads. What fails is tried again the next time: the sandbox itself may have been at fault."""
        tried = offer.skill_id, hash(tuple((app, *names) for app, names in apis.items()))
        if tried in self._loaded:
            return None
        prelude = [Function(offer.name, offer.source)]
        try:
            session = await self._sandbox.open(apis, _no_call, self._limits, prelude=prelude)
        except SandboxError as error:
            return str(error)
        await session.close()
        self._loaded.add(tried)
        return None


async def _no_call(api: str, args: list[Json], kwargs: dict[str, Json]) -> Json:  # noqa: ARG001
    raise HostError("PermissionError", f"{api}: nothing is called while a function loads")
