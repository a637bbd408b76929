"""Selects the skills that a task is offered: relevant ones that the sandbox can load and the APIs still permit."""

from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

import msgspec
import structlog

from app.agent.rollout import ResumeState
from app.apis.calls.skill_guard import GuardedSkill, SkillGuard
from app.apis.catalog import Catalog, with_builtins
from app.base.errors import SandboxError
from app.base.values import Offer, SkillRun
from app.db import results, tables
from app.db.database import Sessions, direct, reading
from app.sandbox.protocol import Function, Sandbox, SessionLimits
from app.skills import offers
from app.skills import store as skills
from app.skills.admission import is_offered, stored_manifest
from app.skills.library import Library
from app.skills.search import SURPLUS, WITHHELD, RetrievalTrace

log = structlog.get_logger(__name__)

_WIDER = 4  # times the limit are looked at, as some of the skills found may be obsolete
_GUARDED = 1_000  # skills whose manifests are kept in memory
_Rejected = list[tuple[Offer, str]]  # each with the reason


def skill_run_of(row: tables.Task) -> SkillRun | None:
    """None for a task that the policy works on."""
    return None if row.skill_run is None else msgspec.convert(row.skill_run, SkillRun)


def is_withheld(task_id: UUID, share: float) -> bool:
    """Whether a task is among the share that does without skills. A larger share contains a smaller one."""
    return int.from_bytes(blake2b(task_id.bytes, digest_size=8).digest()) < share * 2**64


class SkillSelection:
    """Loads every skill once as a test, in a process that is thrown away: its source never changes.

    A skill that does not load is left out, logged and reported as an event of the task. It never stops the task.
    Nor is a skill offered that calls an operation which is no longer what it was: it could only fail.
    """

    def __init__(
        self, sessions: Sessions, library: Library, sandbox: Sandbox, limits: SessionLimits, withheld: float = 0.0
    ) -> None:
        """`withheld` is the share of tasks that get none although some fit."""
        self._withheld = withheld
        self._sessions = sessions
        self._library = library
        self._sandbox = sandbox
        self._limits = limits
        self._loaded: set[UUID] = set()
        self._guarded: dict[UUID, GuardedSkill] = {}  # a skill's source and manifest never change

    async def select(
        self, row: tables.Task, resume: ResumeState, owner: str, catalog: Catalog, *, limit: int
    ) -> tuple[Offer, ...]:
        """Find skills for the task and record them. A resumed task keeps the skills, or none, that it began with.

        Raises ConflictError if another runner has the task.
        """
        async with direct(self._sessions) as handle:
            earlier = await offers.offered(handle, row.id)
        if earlier or resume.recorded or resume.begun or not row.use_skills:
            return tuple((await self._check(row, earlier))[0])
        trace, run = RetrievalTrace(), skill_run_of(row)
        relevant = await (self._named(row, run) if run else self._found(row, trace, _WIDER * limit))
        current, obsolete = await self._sorted_out(relevant, catalog)
        good, rejected = await self._check(row, current, limit)
        left_out = [*obsolete, *rejected]
        tried = {offer.skill_id for offer in (*good, *(offer for offer, _ in left_out))}
        others = left_out + [(offer, SURPLUS) for offer in current if offer.skill_id not in tried]
        withheld = bool(good) and run is None and is_withheld(row.id, self._withheld)
        if withheld:
            new = [offers.skill_event("withheld", offer) for offer in good]
            chosen = trace.record([], [*((offer, WITHHELD) for offer in good), *others])
        else:
            new = [offers.skill_event("offered", offer) for offer in good]
            new += [offers.skill_event("skipped", offer) | {"reason": reason} for offer, reason in left_out]
            chosen = trace.record(good, others)
        if chosen.choices:
            events = [results.NewEvent("skill", {**data}) for data in new]
            record = msgspec.to_builtins(chosen)
            async with direct(self._sessions) as handle:
                await offers.record_held(handle, row.id, owner, good, events, record, withheld=withheld)
        return () if withheld else tuple(good)

    async def _found(self, row: tables.Task, trace: RetrievalTrace, limit: int) -> Sequence[Offer]:
        """Skills that fit the instruction, best first."""
        return await self._library.find(
            row.project_id,
            row.instruction,
            row.scenario,
            limit,
            principal=row.principal,
            release=row.release_id,
            trace=trace,
        )

    async def _named(self, row: tables.Task, run: SkillRun) -> Sequence[Offer]:
        """The skill that the task is to call, unless it was withdrawn meanwhile."""
        async with reading(self._sessions) as session:
            skill = await skills.get(session, run.skill_id, row.project_id)
            return [offers.offer_of(skill)] if await is_offered(session, skill, row.principal) else []

    async def reuse(self, row: tables.Task) -> tuple[Offer, ...]:
        """Return the skills that a finished task was offered, if they still load. Records nothing."""
        async with direct(self._sessions) as handle:
            earlier = await offers.offered(handle, row.id)
        return tuple((await self._check(row, earlier))[0])

    async def guard(self, offered: Sequence[Offer]) -> SkillGuard:
        """Hold these skills to their manifests."""
        guarded = await self._guarded_skills(offered)
        return SkillGuard({offer.name: guarded[offer.skill_id] for offer in offered if offer.skill_id in guarded})

    async def _guarded_skills(self, offered: Sequence[Offer]) -> dict[UUID, GuardedSkill]:
        """By id. Without those that were deleted."""
        unknown = [offer.skill_id for offer in offered if offer.skill_id not in self._guarded]
        if unknown:
            async with reading(self._sessions) as session:
                rows = await skills.of_ids(session, unknown)
            for row in rows:
                self._guarded[row.id] = GuardedSkill.of(stored_manifest(row), row.source)
        found = {each.skill_id: self._guarded[each.skill_id] for each in offered if each.skill_id in self._guarded}
        while len(self._guarded) > _GUARDED:
            del self._guarded[next(iter(self._guarded))]
        return found

    async def _sorted_out(self, found: Sequence[Offer], catalog: Catalog) -> tuple[list[Offer], _Rejected]:
        """The skills whose operations are all as they were, and the others."""
        guarded, apis = await self._guarded_skills(found), with_builtins(catalog)
        current: list[Offer] = []
        obsolete: _Rejected = []
        for offer in found:
            skill = guarded.get(offer.skill_id)
            if gone := skill.manifest.not_in(apis) if skill else []:
                obsolete.append((offer, f"no longer what they were: {', '.join(gone)}"))
            else:
                current.append(offer)
        return current, obsolete

    async def _check(
        self, row: tables.Task, offered: Sequence[Offer], limit: int | None = None
    ) -> tuple[list[Offer], _Rejected]:
        """The first of them that load, at most `limit`."""
        good: list[Offer] = []
        rejected: _Rejected = []
        for offer in offered:
            if len(good) == limit:
                break
            reason = await self._load_error(offer)
            if reason is None:
                good.append(offer)
            else:
                rejected.append((offer, reason))
                log.warning("a skill does not load", task=str(row.id), skill=str(offer.skill_id), cause=reason)
        return good, rejected

    async def _load_error(self, offer: Offer) -> str | None:
        """None if it loads. A failure is tried again the next time: the sandbox may have been the cause."""
        if offer.skill_id in self._loaded:
            return None
        try:
            reason = await self._sandbox.load_error(Function(offer.name, offer.source), self._limits)
        except SandboxError as error:
            return str(error)
        if reason is None:
            self._loaded.add(offer.skill_id)
        return reason
