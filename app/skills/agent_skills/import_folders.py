"""Imports skills from folders: they are read, checked against the project's APIs, and stored. One that is refused
does not keep the others out.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.catalog import Catalog
from app.db import tables
from app.db.skills import NewSkill
from app.skills.admission import admit_import
from app.skills.agent_skills.check_folder import check_folder
from app.skills.agent_skills.read_folder import ReadSkill, read_folder
from app.skills.agent_skills.skill_folder import FolderRefusal, RefusedFolderError, SkillFolder

Refused = Mapping[int, RefusedFolderError]
"""By the place of the folder in the import."""


class ReadFolders(msgspec.Struct, frozen=True):
    read: Mapping[int, ReadSkill]
    refused: Refused


class CheckedFolders(msgspec.Struct, frozen=True):
    new: Mapping[int, NewSkill]
    refused: Refused


class StoredSkill(msgspec.Struct, frozen=True):
    """`is_new`: it was not there before."""

    skill: tables.Skill
    is_new: bool


def read_all(folders: Sequence[SkillFolder]) -> ReadFolders:
    read: dict[int, ReadSkill] = {}
    refused: dict[int, RefusedFolderError] = {}
    for place, folder in enumerate(folders):
        try:
            read[place] = _distinct(read_folder(folder), read)
        except RefusedFolderError as error:
            refused[place] = error
    return ReadFolders(read, refused)


def check_all(folders: ReadFolders, catalog: Catalog) -> CheckedFolders:
    new: dict[int, NewSkill] = {}
    refused = dict(folders.refused)
    for place, read in folders.read.items():
        try:
            new[place] = check_folder(read, catalog)
        except RefusedFolderError as error:
            refused[place] = error
    return CheckedFolders(new, refused)


async def store_all(
    session: AsyncSession, project_id: UUID, folders: CheckedFolders, actor: str
) -> dict[int, StoredSkill]:
    """The caller commits."""
    return {
        place: StoredSkill(*await admit_import(session, project_id, new, actor))
        for place, new in folders.new.items()
    }


def _distinct(read: ReadSkill, others: Mapping[int, ReadSkill]) -> ReadSkill:
    for other in others.values():
        if other.draft.name == read.draft.name:
            reason = f"the folder {other.folder} has a function {read.draft.name}, too: import one of them"
            raise RefusedFolderError(FolderRefusal.NAME_CLASH, reason)
    return read
