"""What activating a release changes: one statement for every way to ask for it, before it is done and after."""

from typing import Literal

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import hosted_id
from app.db import manifests, tables
from app.db.manifests import SkillName
from app.projects import store as projects
from app.release import restored_skills, tool_documents
from app.release.diff import PartChange
from app.release.manifest import SkillsMode


class SkillMoves(msgspec.Struct, frozen=True, kw_only=True):
    """The skills that an activation moves, by name and version.

    `superseded` are replaced by a version that is restored; `withdrawn` ones may be written again; `deleted` ones
    belong to the release, and cannot return.
    """

    restored: list[SkillName] = []
    superseded: list[SkillName] = []
    withdrawn: list[SkillName] = []
    deleted: list[SkillName] = []


class DocumentMoves(msgspec.Struct, frozen=True, kw_only=True):
    """APIs by name. Of `missing` ones the release has documents, but they are no longer registered."""

    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    missing: list[str] = []


class ActivationChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What activating a release changes. A part that stays is null or empty.

    `replaces` is the number of the release that retires; null if the release is active already, which changes
    nothing. The `prompt` comes with the version of the server, and changes where a hosted model takes the place of
    a local one (`hosted`), or the reverse (`local`); where it `stays`, `former_prompt` is the hash of another one
    that the release served with. `watch` says what becomes of the watch of the release that retires; `canary` is
    the number of one that goes on, and is compared with this release from then on.
    """

    replaces: int | None = None
    rolls_back: bool = False
    model: PartChange | None = None
    skills: SkillMoves = msgspec.field(default_factory=SkillMoves)
    documents: DocumentMoves = msgspec.field(default_factory=DocumentMoves)
    prompt: Literal["stays", "hosted", "local"] = "stays"
    former_prompt: str | None = None
    watch: Literal["ends", "goes_on"] | None = None
    canary: int | None = None


def rolls_back(release: tables.Release, active: tables.Release) -> bool:
    """Whether activating the release in place of the active one goes back to what served before it."""
    return release.activated_at is not None and release.number < active.number


async def changes_of(
    session: AsyncSession, release: tables.Release, active: tables.Release | None, skills: SkillsMode = "restore"
) -> ActivationChanges:
    """What activating the release in place of the active one would change now."""
    if active is None or active.id == release.id:
        return ActivationChanges()
    moved = {} if skills == "keep" else await restored_skills.planned(session, release, active)
    canary = await projects.canary_of(session, release.project_id)
    return ActivationChanges(
        replaces=active.number,
        rolls_back=rolls_back(release, active),
        model=None if active.model == release.model else PartChange(active.policy, release.policy),
        skills=SkillMoves(**moved),
        documents=await _documents(session, release, active),
        prompt=(prompt := _prompt(release, active)),
        former_prompt=None if prompt != "stays" or active.prompt in (None, release.prompt) else release.prompt,
        watch=_watch(release, active),
        canary=None if canary is None or canary.id == release.id else canary.number,
    )


async def _documents(session: AsyncSession, release: tables.Release, active: tables.Release) -> DocumentMoves:
    before, after = [await tool_documents.tools_of(session, each) for each in (active, release)]
    there = await manifests.api_tools(session, release.project_id)
    both = before.keys() & after.keys() & there.keys()
    return DocumentMoves(
        added=sorted((after.keys() - before.keys()) & there.keys()),
        removed=sorted((before.keys() - after.keys()) & there.keys()),
        changed=sorted(name for name in both if before[name] != after[name]),
        missing=sorted(after.keys() - there.keys()),
    )


def _prompt(release: tables.Release, active: tables.Release) -> Literal["stays", "hosted", "local"]:
    was_hosted, is_hosted = (hosted_id(each.model) is not None for each in (active, release))
    if was_hosted == is_hosted:
        return "stays"
    return "hosted" if is_hosted else "local"


def _watch(release: tables.Release, active: tables.Release) -> Literal["ends", "goes_on"] | None:
    if active.watched_against is None:
        return None
    return "goes_on" if active.model == release.model and active.watched_against != release.id else "ends"
