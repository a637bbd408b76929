"""The differences between two releases: weights, skills, tools, prompt."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import manifests, models, releases
from app.db.manifests import SkillName
from app.errors import InvalidError
from app.release import manifest, operation_changes
from app.release.operation_changes import OperationChanges


class PartChange(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A part that differs."""

    before: str | None
    after: str | None


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
    training_run: PartChange | None  # that trained the weights
    skills: SkillChanges
    tools: ToolChanges
    prompt: PartChange | None
    empty: bool


class _Parts(msgspec.Struct, frozen=True):
    """The parts of a release. One that never served has those it would serve with now."""

    skills: set[UUID]
    tools: dict[str, str]
    prompt: str | None


async def diff(session: AsyncSession, release: models.Release, other: models.Release) -> Diff:
    """The changes from `release` to `other`. Raises InvalidError if their projects differ."""
    if release.project_id != other.project_id:
        raise InvalidError("the two releases belong to different projects: compare releases of one project")
    one, two = await _parts_of(session, release), await _parts_of(session, other)
    model = _change(release.model, other.model)
    training_run = _change(_text(release.training_run_id), _text(other.training_run_id))
    skills = await _skills(session, one.skills, two.skills)
    tools = await _tools(session, one.tools, two.tools)
    prompt = _change(one.prompt, two.prompt)
    return Diff(
        model=model,
        training_run=training_run,
        skills=skills,
        tools=tools,
        prompt=prompt,
        empty=(model, training_run, prompt, one.skills, one.tools) == (None, None, None, two.skills, two.tools),
    )


async def _parts_of(session: AsyncSession, release: models.Release) -> _Parts:
    prompt = release.prompt or (await releases.active(session, release.project_id)).prompt
    skills, tools = await manifest.skills_of(session, release), await manifest.tools_of(session, release)
    return _Parts(set(skills), tools, prompt)


async def _skills(session: AsyncSession, before: set[UUID], after: set[UUID]) -> SkillChanges:
    return SkillChanges(
        added=await manifests.skill_names(session, after - before),
        removed=await manifests.skill_names(session, before - after),
    )


async def _tools(session: AsyncSession, before: Mapping[str, str], after: Mapping[str, str]) -> ToolChanges:
    """Documents that differ are stored: only unchanged ones are read from the registered APIs."""
    apart = {name: (before[name], after[name]) for name in before if after.get(name, before[name]) != before[name]}
    documents = await manifests.documents(session, {digest for pair in apart.values() for digest in pair})
    changed = {
        name: await asyncio.to_thread(operation_changes.compare, name, documents[old], documents[new])
        for name, (old, new) in sorted(apart.items())
    }
    return ToolChanges(sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), changed)


def _change(before: str | None, after: str | None) -> PartChange | None:
    return None if before == after else PartChange(before, after)


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
