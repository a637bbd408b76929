"""Skills that rollouts of practice wrote and that helped further tasks, for the project's library."""

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import msgspec

from app.apis.builtin import with_builtins
from app.db import skill_moves
from app.db.database import Sessions
from app.db.skills import NewSkill
from app.records import Json
from app.release import manifest
from app.release.catalogs import Catalogs
from app.skills.admission import admit, stored_manifest
from app.skills.extract import extract
from trainer.atomic_write import write_atomically
from trainer.rollouts.episode import Episode
from trainer.rollouts.groups import ChainRollout
from trainer.run_job import Job, RunProgress

_USED = 2  # further tasks that were solved with it, at least
_OFFERED = 20  # of a run, at most
_KEPT = 2_000  # in memory, the newest


class PractisedSkill(msgspec.Struct):
    """A source, the solved tasks that wrote it, and those that were solved with it after that."""

    new: NewSkill
    written: set[UUID] = set()
    used: set[UUID] = set()

    @property
    def helped(self) -> int:
        return len(self.used - self.written)


class PractisedSkills:
    """All that a run wrote, kept in its directory. The same text under the same name is one skill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._skills: dict[tuple[str, str], PractisedSkill] = {}
        if path.exists():
            for each in msgspec.msgpack.decode(path.read_bytes(), type=list[PractisedSkill]):
                self._skills[each.new.name, each.new.source] = each

    def add(self, rollouts: Iterable[ChainRollout]) -> None:
        """What solved tasks wrote and used. Safe to repeat."""
        for rollout in rollouts:
            for episode in rollout.episodes:
                if episode.verdict.known and episode.verdict.success:
                    self._add(episode)
        for key in list(self._skills)[: max(0, len(self._skills) - _KEPT)]:
            del self._skills[key]
        write_atomically(msgspec.msgpack.encode(list(self._skills.values())), self._path)

    def _add(self, episode: Episode) -> None:
        trajectory = episode.trajectory
        for offer in trajectory.used():
            if (known := self._skills.get((offer.name, offer.source))) is not None:
                known.used.add(trajectory.task.id)
        made = {each.name for each in episode.made if each.skill_id in episode.creditable}
        for draft in extract(trajectory) if made else ():
            if draft.name not in made or draft.name not in episode.manifests:
                continue
            new = NewSkill(
                name=draft.name,
                signature=draft.signature,
                source=draft.source,
                apis=list(draft.apis),
                instruction=draft.instruction,
                slots=list(draft.slots),
                manifest=msgspec.to_builtins(episode.manifests[draft.name]),
            )
            known = self._skills.setdefault((draft.name, draft.source), PractisedSkill(new))
            known.written.add(trajectory.task.id)

    def best(self) -> list[NewSkill]:
        """Those that helped, one of a name, the most helpful first."""
        helpful = [each for each in self._skills.values() if each.helped >= _USED]
        ordered = sorted(helpful, key=lambda each: (-each.helped, each.new.name, each.new.source))
        return list({each.new.name: each.new for each in reversed(ordered)}.values())[::-1]


async def offer_skills(
    job: Job, progress: RunProgress, sessions: Sessions, found: PractisedSkills, decision: str
) -> list[dict[str, Json]]:
    """Add the best ones to the project's library, as it admits any new skill, if the API has what they call. None
    if the gate's decision is that the candidate is rejected: what it wrote is no better.

    Safe to repeat. Returns what was added.
    """
    if decision == "rejected":
        return []
    async with sessions() as session:
        served = await manifest.begin_serving(session, job.project_id, None, None)
    catalog = await Catalogs(sessions).of(served.documents)
    apis = with_builtins(catalog)
    fitting = [each for each in found.best() if not stored_manifest(each).not_in(apis)]
    async with sessions.begin() as session:
        await progress.hold(session)
        rows = [
            await admit(session, job.project_id, each, catalog, actor=skill_moves.PRACTICE)
            for each in fitting[:_OFFERED]
        ]
        return [{"id": str(row.id), "name": row.name, "version": row.version, "state": row.state} for row in rows]
