"""Skills in requests and responses: their source, origin, evidence and use; and an import of folders."""

from collections import Counter
from datetime import datetime
from typing import Annotated, Literal, Self
from uuid import UUID

import msgspec

from app.apis.calls.skill_guard import SkillManifest
from app.base.fields import columns
from app.base.values import Offer
from app.db import tables
from app.db.tables import SkillState
from app.skills.evidence import SkillEvidence
from app.skills.folders import FolderRefusal, RefusedFolderError, SkillFolder
from app.skills.offers import SkillStats
from app.web.fields import ConsoleLinks


class SkillSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A skill in a list. `task_id` is the task that wrote it, `principal` that task's.

    `apis` are the operations that its source names, of which its manifest may permit fewer. `taint` is the text
    from outside that the agent had read before it wrote the skill; empty if there was none. A skill that is `held`
    is offered to nobody until it is approved. `reason` is why it is in its state.
    """

    id: UUID
    project: str
    name: str
    version: int
    state: tables.SkillState
    held: bool
    reason: str
    principal: str
    taint: str
    signature: str
    apis: list[str]
    instruction: str
    scenario: str | None
    task_id: UUID | None
    created_at: datetime
    links: ConsoleLinks

    @classmethod
    def of(cls, skill: tables.Skill, project: str) -> "SkillSummary":
        links = ConsoleLinks.of("skills", skill.id)
        return SkillSummary(project=project, links=links, **columns(skill, SkillSummary, "project", "links"))


class SkillPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    skills: list[SkillSummary]
    next_cursor: str | None


class SkillStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about a skill, and what it lacks for the next state. `missing` is empty in a final state."""

    evidence: SkillEvidence
    next_state: tables.SkillState | None
    missing: list[str]


class SkillRepairView(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of an API did to the skill. It was `was` before; `tried` says what was done since, in order.
    Without an `outcome` it is under way. `task_id` is the latest task that was to write it anew.
    """

    api: str
    change_id: UUID
    was: tables.SkillState
    outcome: tables.RepairOutcome | None
    tried: list[str]
    task_id: UUID | None
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, row: tables.SkillRepair, api: str) -> Self:
        return cls(api=api, **columns(row, cls, "api"))


class SkillView(SkillSummary, frozen=True, kw_only=True):
    """A skill with its source, which is empty if the skill was deleted.

    `manifest` is all that it may do: operations with their method, and the origins of each argument. Where
    `arguments` is null, any are allowed.
    """

    source: str
    manifest: SkillManifest
    standing: SkillStanding
    release_id: UUID | None
    embedder: str | None
    stats: SkillStats
    repairs: list[SkillRepairView]


class SkillMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A search result. `ranks` is its rank, from 1, in each retrieval list that was fused."""

    skill_id: UUID = msgspec.field(name="id")
    name: str
    version: int
    signature: str
    instruction: str
    source: str
    ranks: dict[str, int]

    @classmethod
    def of(cls, offer: Offer) -> Self:
        return cls(**columns(offer, cls))


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
    def stored(cls, folder: str, skill: tables.Skill, is_new: bool) -> Self:
        """`is_new`: it was not there before."""
        return cls(
            folder=folder,
            result="imported" if is_new else "present",
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
    def of(cls, folders: list[ImportedFolder]) -> Self:
        counts = Counter[str](each.result for each in folders)
        return cls(
            imported=counts["imported"], present=counts["present"], refused=counts["refused"], folders=folders
        )
