"""The differences between two releases: weights, skills, tools, prompt."""

from collections.abc import Mapping
from difflib import unified_diff
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.documents.reader import DocumentReader
from app.apis.presentation import OperationTraits, Presentation
from app.base.errors import InvalidError
from app.db import manifests, releases, tables
from app.db.manifests import SkillName, Tool
from app.release import manifest, tool_documents
from app.release.operation_changes import OperationChanges, compare


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


class _Parts(msgspec.Struct, frozen=True):
    """The parts of a release. One that never served has those it would serve with now."""

    skills: set[UUID]
    tools: dict[str, Tool]
    prompt: str | None


async def diff(
    session: AsyncSession, reader: DocumentReader | None, release: tables.Release, other: tables.Release
) -> Diff:
    """The changes from `release` to `other`. Ends the transaction. Without a reader, which may take its time,
    changed documents are named without their operations. Raises InvalidError for two projects.
    """
    if release.project_id != other.project_id:
        raise InvalidError("the two releases belong to different projects: compare releases of one project")
    one, two = await _parts_of(session, release), await _parts_of(session, other)
    model = None if release.model == other.model else PartChange(release.policy, other.policy)
    training_run = _change(_text(release.training_run_id), _text(other.training_run_id))
    skills = await _skills(session, one.skills, two.skills)
    tools = await _tools(session, reader, one.tools, two.tools)
    prompt = await _prompt(session, one.prompt, two.prompt)
    return Diff(
        model=model,
        training_run=training_run,
        skills=skills,
        tools=tools,
        prompt=prompt,
        empty=(model, training_run, prompt, one.skills, one.tools) == (None, None, None, two.skills, two.tools),
    )


async def _parts_of(session: AsyncSession, release: tables.Release) -> _Parts:
    prompt = release.prompt or (await releases.active(session, release.project_id)).prompt
    skills, tools = await manifest.skills_of(session, release), await tool_documents.tools_of(session, release)
    return _Parts(set(skills), tools, prompt)


async def _skills(session: AsyncSession, before: set[UUID], after: set[UUID]) -> SkillChanges:
    return SkillChanges(
        added=await manifests.skill_names(session, after - before),
        removed=await manifests.skill_names(session, before - after),
    )


async def _tools(
    session: AsyncSession, reader: DocumentReader | None, before: Mapping[str, Tool], after: Mapping[str, Tool]
) -> ToolChanges:
    """Documents that differ are kept: only unchanged ones are read from the registered APIs."""

    async def traits(name: str, tool: Tool) -> Mapping[str, OperationTraits]:
        if reader is None:
            return {}
        text = await manifests.kept_document(session, tool.digest)
        await session.commit()  # no transaction is held while a document is read
        return await reader.traits(name, text, tool.digest, msgspec.convert(tool.presentation, Presentation))

    apart = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    changed = {name: compare(await traits(name, before[name]), await traits(name, after[name])) for name in apart}
    return ToolChanges(sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), changed)


async def _prompt(session: AsyncSession, before: str | None, after: str | None) -> PromptChange | None:
    if before == after:
        return None
    one, two = [await manifests.prompt_text(session, each) for each in (before, after)]
    if one is None or two is None:
        return PromptChange(before, after)
    differences = unified_diff(one.splitlines(), two.splitlines(), "before", "after", lineterm="")
    return PromptChange(before, after, diff=list(differences))


def _change(before: str | None, after: str | None) -> PartChange | None:
    return None if before == after else PartChange(before, after)


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
