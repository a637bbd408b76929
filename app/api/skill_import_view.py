"""An import of skills in requests and responses."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self
from uuid import UUID

import msgspec

from app.db.tables import SkillState
from app.skills.agent_skills.import_folders import Refused, StoredSkill
from app.skills.agent_skills.skill_folder import FolderRefusal, RefusedFolderError, SkillFolder


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`project` is by default the key's own, or the only one."""

    folders: Annotated[list[SkillFolder], msgspec.Meta(min_length=1, max_length=200)]
    project: str | None = None


class ImportedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a folder. One that is `present` is a skill with the same code that was there before.

    `error` names the reason of a refusal, and `detail` says what is wrong.
    """

    folder: str
    result: Literal["imported", "present", "refused"]
    error: FolderRefusal | None = None
    detail: str = ""
    id: UUID | None = None
    name: str | None = None
    version: int | None = None
    state: SkillState | None = None

    @classmethod
    def stored(cls, folder: str, stored: StoredSkill) -> Self:
        skill = stored.skill
        return cls(
            folder=folder,
            result="imported" if stored.is_new else "present",
            detail=skill.reason,
            id=skill.id,
            name=skill.name,
            version=skill.version,
            state=skill.state,
        )

    @classmethod
    def refused(cls, folder: str, error: RefusedFolderError) -> Self:
        return cls(folder=folder, result="refused", error=error.kind, detail=str(error))


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of the request, after the numbers of each result."""

    imported: int
    present: int
    refused: int
    folders: list[ImportedFolder]

    @classmethod
    def of(cls, names: Sequence[str], stored: Mapping[int, StoredSkill], refused: Refused) -> Self:
        folders = [
            ImportedFolder.refused(name, refused[place])
            if place in refused
            else ImportedFolder.stored(name, stored[place])
            for place, name in enumerate(names)
        ]
        counts = {
            result: sum(each.result == result for each in folders) for result in ("imported", "present", "refused")
        }
        return cls(**counts, folders=folders)
