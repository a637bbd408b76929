"""A release is one unit: weights, skills, tools and prompt, which begin and cease to serve together.

Weights are fixed. The library lives and grows while a release serves; as it was at the end is what a roll-back
restores. Tools are API documents: another document makes another release, so a task sees those of its own release.
The prompt is code: it cannot be rolled back, but a release says which one it served with.
"""

from collections.abc import Collection, Sequence
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import apis, audit, manifests, models, releases, skill_sets
from app.db.manifests import SkillName
from app.db.models import AuditAction, ReleaseState
from app.records import Json

Skills = Literal["restore", "keep"]
SERVER = "server"  # the actor where nobody asked


class ApiDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a task may call: the document is its release's, its server and its token are the present ones."""

    id: UUID  # of the API
    name: str
    source: str
    server: str | None
    secret: str | None
    digest: str
    document: dict[str, Json]


async def document_set(session: AsyncSession, release: models.Release) -> Sequence[ApiDocument]:
    """By name. An API that was removed since is not among them: its token is gone."""
    rows = await apis.of_project(session, release.project_id)
    digests = await tools_of(session, release)
    changed = {row.name for row in rows if digests.get(row.name, row.digest) != row.digest}
    kept = await manifests.documents(session, {digests[name] for name in changed})
    return [
        ApiDocument(
            id=row.id,
            name=row.name,
            source=row.source,
            server=row.server,
            secret=row.secret,
            digest=digests[row.name],
            document=kept[digests[row.name]] if row.name in changed else row.document,
        )
        for row in rows
        if row.name in digests
    ]


async def tools_of(session: AsyncSession, release: models.Release) -> dict[str, str]:
    """Name and digest of each API document. One that never served would have those of the release that does."""
    if release.tools is not None:
        return await manifests.tool_digests(session, release.tools)
    present = await releases.active(session, release.project_id)
    if present.tools is not None:
        return await manifests.tool_digests(session, present.tools)
    return await manifests.api_digests(session, release.project_id)


async def skills_of(session: AsyncSession, release: models.Release) -> list[UUID]:
    """Ids of the skills that were active when it last ceased to serve, else of those that are."""
    if release.skills is None or release.state in (ReleaseState.ACTIVE, ReleaseState.CANARY):
        return await manifests.active_skills(session, release.project_id)
    return await manifests.skill_ids(session, release.skills)


async def serve(
    session: AsyncSession,
    release: models.Release,
    former: models.Release | None,
    prompt_hash: str,
    *,
    skills: Skills = "restore",
) -> dict[str, Json]:
    """Write down what a release serves with, in the transaction that activates it, and how `former` ended.

    One that has served before gets its skills back, unless they are to be kept as they are. Returns, for the
    receipt, the skills that changed, the APIs of its tools that are gone, and its prompt where that was another.
    """
    changed: dict[str, Json] = {}
    release = await session.get_one(models.Release, release.id)
    if former is not None and former.id != release.id:
        await _cease(session, await session.get_one(models.Release, former.id), prompt_hash)
        if skills == "restore" and release.skills is not None:
            changed |= await _restore_skills(session, release.project_id, release.skills)
    if release.tools is None:
        tools = await tools_of(session, former or release)
        release.tools = await manifests.store_tools(session, release.project_id, tools)
    changed |= await _missing(session, release.project_id, release.tools)
    if release.prompt not in (None, prompt_hash):
        changed["prompt"] = {"was": release.prompt, "now": prompt_hash}
    release.prompt = prompt_hash
    release.skills = await manifests.store_skills(session, release.project_id)
    await session.flush()
    return changed


async def served_with(session: AsyncSession, release: models.Release, prompt_hash: str) -> None:
    """Write down the prompt of its first task, where nobody did before."""
    if release.prompt is None:
        row = models.Release
        await session.execute(
            update(row).where(row.id == release.id, row.prompt.is_(None)).values(prompt=prompt_hash)
        )


async def hold(session: AsyncSession, project_id: UUID) -> models.Release:
    """The active release, with what tools it serves written down. It stays so until this transaction ends."""
    await releases.locked(session, (await releases.active(session, project_id)).id)
    release = await releases.active(session, project_id)  # another may have become it while this one waited
    await session.refresh(release)
    if release.tools is None:
        release.tools = await manifests.store_tools(
            session, project_id, await manifests.api_digests(session, project_id)
        )
        await session.flush()
    return release


async def tools_changed(
    session: AsyncSession, serving: models.Release, names: Collection[str], actor: str
) -> models.Release:
    """After APIs of these names were put or removed, in the same transaction. `serving` is from `hold`.

    Where the documents are not those that it serves, a release with them and the same weights becomes active. Of
    the other APIs it has what `serving` has, so that a roll-back is not undone by a change of something else.
    """
    before = await tools_of(session, serving)
    there = await manifests.api_digests(session, serving.project_id)
    now = {name: digest for name, digest in before.items() if name not in names}
    now |= {name: there[name] for name in names if name in there}
    if now == before:
        return serving
    tools = await manifests.store_tools(session, serving.project_id, now)
    apart = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    reason = f"the {'API' if len(apart) == 1 else 'APIs'} {', '.join(apart)} changed"
    return await _follow(session, serving, actor, reason, tools=tools)


async def prompt_changed(session: AsyncSession, project_id: UUID, prompt_hash: str) -> models.Release:
    """What serves, from now on with this prompt: a release of its own where it served with another before."""
    serving = await hold(session, project_id)
    if serving.prompt == prompt_hash:
        return serving
    if serving.prompt is None:
        serving.prompt = prompt_hash
        await session.flush()
        return serving
    return await _follow(session, serving, SERVER, "the prompt changed", prompt=prompt_hash)


async def _follow(
    session: AsyncSession, serving: models.Release, actor: str, reason: str, **made_of: str
) -> models.Release:
    """The same weights serve on, in the next release. One that no task began with is changed where it stands."""
    release = serving
    detail: dict[str, Json] = {"reason": reason, "model": serving.model}
    for part, now in made_of.items():
        detail[part] = {"was": getattr(serving, part), "now": now}
    if not await manifests.is_unused(session, serving):
        serving.skills = await manifests.store_skills(session, serving.project_id)
        candidate = await releases.propose(session, serving.project_id, serving.model)
        release = await releases.activate(session, candidate.id)
        release.training_run_id, release.evidence = serving.training_run_id, {"reason": reason}
        release.skills, release.tools, release.prompt = serving.skills, serving.tools, serving.prompt
    for part, now in made_of.items():
        setattr(release, part, now)
    await session.flush()
    await audit.add(session, release.project_id, release.id, actor, AuditAction.ACTIVATED, detail)
    return release


async def _cease(session: AsyncSession, former: models.Release, prompt_hash: str) -> None:
    """What it would be rolled back to."""
    former.skills = await manifests.store_skills(session, former.project_id)
    former.prompt = former.prompt or prompt_hash
    if former.tools is None:
        registered = await manifests.api_digests(session, former.project_id)
        former.tools = await manifests.store_tools(session, former.project_id, registered)
    await session.flush()


async def _restore_skills(session: AsyncSession, project_id: UUID, skill_set: str) -> dict[str, Json]:
    moved = await skill_sets.restore(session, project_id, await manifests.skill_ids(session, skill_set))
    named = {how: list(map(SkillName.of, rows)) for how, rows in msgspec.structs.asdict(moved).items() if rows}
    return {"skills": msgspec.to_builtins(named)} if named else {}


async def _missing(session: AsyncSession, project_id: UUID, tools: str) -> dict[str, Json]:
    there = await manifests.api_digests(session, project_id)
    gone = sorted((await manifests.tool_digests(session, tools)).keys() - there.keys())
    return {"tools": {"missing": gone}} if gone else {}
