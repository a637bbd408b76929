"""The manifest of a release: weights, skills, tools and prompt, which are activated and rolled back as one.

Weights are fixed. The library grows while a release serves; a rollback restores its state at the end. Tools
are API documents: a changed document makes a new release, so a task sees those of its own release. The prompt
is code: it cannot be rolled back, but a release records which one it served with. Two releases differ by
these four parts.
"""

from collections.abc import Collection, Mapping, Sequence
from difflib import unified_diff
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import prompt_of
from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.apis.presentation import OperationTraits, Presentation
from app.base.errors import InvalidError
from app.base.values import Json
from app.db import tables
from app.db.database import Handle
from app.db.tables import SERVING_STATES, AuditAction, ReleaseState, SkillState
from app.projects import audit
from app.projects import store as projects
from app.releases import manifest_store, trials_store
from app.releases import store as releases
from app.releases.manifest_store import SkillName, Tool
from app.releases.tools import ApiDocument, api_documents, document_of, tools_of
from app.skills import moves

SERVER = "server"  # the actor of automatic changes
SkillsMode = Literal["restore", "keep"]


async def restore(
    session: AsyncSession, release: tables.Release, previous: tables.Release, skill_set: str
) -> dict[str, Json]:
    """Restore a release's skills. Those that a later one wrote while it was a canary are in that set: they go."""
    states = await manifest_store.skill_states(session, skill_set)
    moved = msgspec.structs.asdict(await moves.restore_set(session, release.project_id, states))
    if previous.number > release.number:
        reason, out = f"its release {previous.number} was rolled back", SkillState.SUPERSEDED
        of_canary = await moves.withdraw(session, previous.id, release.project_id, reason, actor=SERVER, state=out)
        moved["withdrawn"] = [*moved["withdrawn"], *of_canary]
    named = _named(moved)
    return {"skills": msgspec.to_builtins(named)} if named else {}


async def planned(
    session: AsyncSession, release: tables.Release, previous: tables.Release
) -> dict[str, list[SkillName]]:
    """The skills that activating a release in place of `previous` would restore or take out now, by what would
    happen to them. Empty for one that never served, which gets the present ones.
    """
    if release.skills is None:
        return {}
    states = await manifest_store.skill_states(session, release.skills)
    moved = msgspec.structs.asdict(await moves.plan_set(session, release.project_id, states, release.id))
    if previous.number > release.number:
        gone = {row.id for rows in (moved["superseded"], moved["withdrawn"]) for row in rows}
        written = await moves.written_by(session, previous.id)
        moved["withdrawn"] = [*moved["withdrawn"], *(row for row in written if row.id not in gone)]
    return _named(moved)


def _named(moved: dict[str, list[tables.Skill]]) -> dict[str, list[SkillName]]:
    return {how: list(map(SkillName.of, rows)) for how, rows in moved.items() if rows}


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What a release gives a task."""

    project: str
    settings: dict[str, Json]
    learns: bool  # runs that learn from its tasks are scheduled
    release: UUID
    state: ReleaseState
    model: str
    prompt: str | None
    documents: Sequence[ApiDocument]


async def serving(handle: Handle, project_id: UUID, release_id: UUID) -> Serving | None:
    """All in one query. None for a release whose tools are not recorded: it never served."""
    found = await manifest_store.manifests_serving(handle, project_id, release_id)
    if not found:
        return None
    return Serving(
        project=found[0].project,
        settings=found[0].settings,
        learns=found[0].learns,
        release=release_id,
        state=found[0].state,
        model=found[0].model,
        prompt=found[0].prompt,
        documents=[
            document_of(handle, row, Tool(row.document, row.presentation or {}), row.has_credentials)
            for row in found
            if row.document is not None
        ],
    )


async def begin_serving(
    session: AsyncSession, project_id: UUID, release_id: UUID | None, prompt_hash: str | None
) -> Serving:
    """What a release gives a task, or the active one if None. Records the prompt of its first task, if that of the
    model servers' model is given.
    """
    project = await projects.by_id(session, project_id)
    if release_id is None:
        release = await releases.active(session, project_id)
    else:
        release = await releases.get(session, release_id)
    documents = await api_documents(session, release)
    if prompt_hash is not None and release.prompt is None:
        row, prompt = tables.Release, prompt_of(release.model, prompt_hash)
        first = update(row).where(row.id == release.id, row.prompt.is_(None))
        await session.execute(first.values(prompt=prompt))
    return Serving(
        project=project.name,
        settings=project.settings,
        learns=bool(await session.scalar(select(manifest_store.learns_from_tasks(project_id)))),
        release=release.id,
        state=release.state,
        model=release.model,
        prompt=release.prompt,
        documents=documents,
    )


async def skills_of(session: AsyncSession, release: tables.Release) -> list[UUID]:
    """Ids, sorted, of the skills offered when it last stopped serving, or now if it serves or never did."""
    if release.skills is None or release.state in SERVING_STATES:
        return sorted(await moves.offered_skills(session, release.project_id))
    return sorted(await manifest_store.skill_states(session, release.skills))


async def record_activation(
    session: AsyncSession,
    release: tables.Release,
    previous: tables.Release | None,
    prompt_hash: str,
    *,
    skills: SkillsMode = "restore",
) -> dict[str, Json]:
    """Record the parts of a release, in the transaction that activates it, and the final ones of `previous`.
    `prompt_hash` is of the model servers' model.

    One that has served before gets its skills back, unless `skills` is "keep". Returns, for the audit log, the
    skills that changed, the APIs that are missing, and a changed prompt.
    """
    changed: dict[str, Json] = {}
    release = await session.get_one(tables.Release, release.id)
    if previous is not None and previous.id != release.id:
        await _record_end(session, await session.get_one(tables.Release, previous.id), prompt_hash)
        if skills == "restore" and release.skills is not None:
            changed |= await restore(session, release, previous, release.skills)
    if release.tools is None:
        tools = await tools_of(session, previous or release)
        release.tools = await manifest_store.store_tools(session, release.project_id, tools)
    there = await manifest_store.api_tools(session, release.project_id)
    if gone := sorted((await manifest_store.tool_set(session, release.tools)).keys() - there.keys()):
        changed["tools"] = {"missing": gone}
    prompt = prompt_of(release.model, prompt_hash)
    if release.prompt not in (None, prompt):
        changed["prompt"] = {"was": release.prompt, "now": prompt}
    release.prompt = prompt
    release.skills = await manifest_store.store_skills(session, release.project_id)
    await session.flush()
    return changed


async def lock_active(session: AsyncSession, project_id: UUID) -> tables.Release:
    """The active release, with its tools recorded, locked until this transaction ends."""
    await releases.locked(session, (await releases.active(session, project_id)).id)
    release = await releases.active(session, project_id)  # another one may have been activated while this waited
    await session.refresh(release)
    if release.tools is None:
        release.tools = await _present_tools(session, project_id)
        await session.flush()
    return release


async def update_tools(
    session: AsyncSession, serving: tables.Release, names: Collection[str], actor: str
) -> tables.Release:
    """Call after APIs of these names were put or removed, in the same transaction. `serving` is from
    `lock_active`.

    If the documents or their presentations differ from its own, a release with them and the same weights becomes
    active. It keeps the other documents of `serving`, so that a change of one API does not undo a rollback.
    """
    before = await tools_of(session, serving)
    there = await manifest_store.api_tools(session, serving.project_id)
    now = {name: tool for name, tool in before.items() if name not in names}
    now |= {name: there[name] for name in names if name in there}
    if now == before:
        return serving
    tools = await manifest_store.store_tools(session, serving.project_id, now)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    reason = f"the {'API' if len(changed) == 1 else 'APIs'} {', '.join(changed)} changed"
    return await _succeed(session, serving, actor, reason, tools=tools)


async def keep_tools(
    session: AsyncSession, serving: tables.Release, replaced: tables.Release, actor: str
) -> tables.Release:
    """Call in the transaction that activated `serving`. Its weights serve with the documents of the release that
    they replaced, in a new release if these differ.
    """
    if replaced.tools is None or replaced.tools == serving.tools:
        return serving
    reason = f"the API documents of release {replaced.number} stay"
    return await _succeed(session, serving, actor, reason, tools=replaced.tools)


async def update_prompt(
    session: AsyncSession, project_id: UUID, prompt_hash: str, in_use: Collection[str] = ()
) -> tables.Release:
    """Ensure the active release has this prompt, or that of hosted models if it has one: a new release if it
    served with another one.

    Nothing changes while its own is among those `in_use`, as in a rolling upgrade.
    """
    serving = await lock_active(session, project_id)
    prompt_hash = prompt_of(serving.model, prompt_hash)
    if serving.prompt == prompt_hash or serving.prompt in in_use:
        return serving
    if serving.prompt is None:
        serving.prompt = prompt_hash
        await session.flush()
        return serving
    return await _succeed(session, serving, SERVER, "the prompt changed", prompt=prompt_hash)


async def _succeed(
    session: AsyncSession, serving: tables.Release, actor: str, reason: str, **made_of: str
) -> tables.Release:
    """Activate a new release with the same weights. A release without tasks is changed in place, unless a watch
    began with it: a roll-back keeps only documents of releases that followed.
    """
    release = serving
    detail: dict[str, Json] = {"reason": reason, "model": serving.model}
    for part, now in made_of.items():
        detail[part] = {"was": getattr(serving, part), "now": now}
    if trials_store.began_with(serving) or not await manifest_store.is_unused(session, serving):
        serving.skills = await manifest_store.store_skills(session, serving.project_id)
        candidate = await releases.propose(session, serving.project_id, serving.model)
        release = await releases.activate(session, candidate.id, allow_rejected=True)  # its weights serve already
        release.training_run_id, release.evidence = (
            serving.training_run_id,
            {**(release.evidence or {}), "reason": reason},
        )
        release.skills, release.tools, release.prompt = serving.skills, serving.tools, serving.prompt
    for part, now in made_of.items():
        setattr(release, part, now)
    await session.flush()
    await audit.add(session, release.project_id, release.id, actor, AuditAction.ACTIVATED, detail)
    return release


async def _record_end(session: AsyncSession, previous: tables.Release, prompt_hash: str) -> None:
    """Record the state that a rollback restores."""
    previous.skills = await manifest_store.store_skills(session, previous.project_id)
    previous.prompt = previous.prompt or prompt_of(previous.model, prompt_hash)
    if previous.tools is None:
        previous.tools = await _present_tools(session, previous.project_id)
    await session.flush()


async def _present_tools(session: AsyncSession, project_id: UUID) -> str:
    """Store the registered APIs as a set. Returns its hash."""
    registered = await manifest_store.api_tools(session, project_id)
    return await manifest_store.store_tools(session, project_id, registered)


class OperationChanges(msgspec.Struct, frozen=True):
    """Operations by name. All are empty if the difference is invisible to an agent."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    renamed: dict[str, str] = {}  #: name before -> now


def compare(old: Mapping[str, OperationTraits], new: Mapping[str, OperationTraits]) -> OperationChanges:
    """An operation under another name is known by its operationId, or by method and path."""
    gone, come = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    now = {new[name].place: name for name in come} | {new[name].key: name for name in come}
    renamed = {
        name: after for name in gone if (after := now.get(old[name].key) or now.get(old[name].place)) is not None
    }
    return OperationChanges(
        added=sorted({*come} - {*renamed.values()}),
        removed=[name for name in gone if name not in renamed],
        changed=sorted(name for name in new.keys() & old.keys() if new[name].fingerprint != old[name].fingerprint),
        renamed=renamed,
    )


class PartChange(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A part that differs."""

    before: str | None
    after: str | None


class PromptChange(PartChange, frozen=True, kw_only=True):
    """By hash, and by line as a unified diff: empty if an earlier version of this server did not keep the text."""

    diff: list[str] = []


class SkillChanges(msgspec.Struct, frozen=True):
    """Skills by name and version."""

    added: list[SkillName]
    removed: list[SkillName]


class ToolChanges(msgspec.Struct, frozen=True):
    """APIs by name, and the operations of those with another document."""

    added: list[str]
    removed: list[str]
    changed: dict[str, OperationChanges]


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from the first release to the second. A part that is equal is null."""

    model: PartChange | None
    training_run: PartChange | None  #: that trained the weights
    skills: SkillChanges
    tools: ToolChanges
    prompt: PromptChange | None
    empty: bool


async def diff(
    session: AsyncSession, reader: DocumentReader | None, release: tables.Release, other: tables.Release
) -> Diff:
    """The changes from `release` to `other`. Ends the transaction. Without a reader, which may take its time,
    changed documents are named without their operations. Raises InvalidError for two projects.
    """
    if release.project_id != other.project_id:
        raise InvalidError("the two releases belong to different projects: compare releases of one project")
    both = (release, other)  # one that never served has the parts that it would serve with now
    runs = [None if each.training_run_id is None else str(each.training_run_id) for each in both]
    prompts = [each.prompt or (await releases.active(session, each.project_id)).prompt for each in both]
    skills = [{*await skills_of(session, each)} for each in both]
    tools = [await tools_of(session, each) for each in both]
    parts = ([each.model for each in both], runs, prompts, skills, tools)
    return Diff(
        model=None if release.model == other.model else PartChange(release.policy, other.policy),
        training_run=None if runs[0] == runs[1] else PartChange(*runs),
        skills=SkillChanges(
            added=await manifest_store.skill_names(session, skills[1] - skills[0]),
            removed=await manifest_store.skill_names(session, skills[0] - skills[1]),
        ),
        tools=await _tools(session, reader, *tools),
        prompt=await _prompt(session, *prompts),
        empty=all(before == after for before, after in parts),
    )


async def _tools(
    session: AsyncSession, reader: DocumentReader | None, before: Mapping[str, Tool], after: Mapping[str, Tool]
) -> ToolChanges:
    """Documents that differ are kept: only unchanged ones are read from the registered APIs."""

    async def traits(name: str, tool: Tool) -> Mapping[str, OperationTraits]:
        if reader is None:
            return {}
        text = await apis.kept_document(session, tool.digest)
        await session.commit()  # no transaction is held while a document is read
        return await reader.traits(name, text, tool.digest, msgspec.convert(tool.presentation, Presentation))

    apart = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    changed = {name: compare(await traits(name, before[name]), await traits(name, after[name])) for name in apart}
    return ToolChanges(sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), changed)


async def _prompt(session: AsyncSession, before: str | None, after: str | None) -> PromptChange | None:
    if before == after:
        return None
    one, two = [await manifest_store.prompt_text(session, each) for each in (before, after)]
    if one is None or two is None:
        return PromptChange(before, after)
    differences = unified_diff(one.splitlines(), two.splitlines(), "before", "after", lineterm="")
    return PromptChange(before, after, diff=list(differences))
