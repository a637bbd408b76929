"""Checks a skill that was read from a folder, as one that the agent wrote would be checked. Pure."""

from uuid import UUID

import msgspec

from app.apis.calls.skill_guard import AllowedOperation, SkillManifest
from app.apis.catalog import COMPLETE_TASK, Catalog, Operation, with_builtins
from app.base.values import Policy, Stop, Task, Trajectory
from app.db.skills import NewSkill
from app.skills.agent_skills.read_folder import ReadSkill
from app.skills.agent_skills.skill_folder import FolderRefusal, RefusedFolderError
from app.skills.validate_drafts import refusals

_OF_A_TASK = ("returned", "task_details")  # checks about the task that wrote a skill: there is none here


def check_folder(read: ReadSkill, catalog: Catalog) -> NewSkill:
    """The skill, whose manifest permits no more than what its code names and the catalog has.

    Raises RefusedFolderError.
    """
    draft = read.draft
    known = _known(catalog)
    if unknown := [api for api in draft.apis if api not in known]:
        reason = f"it calls operations that the project's APIs do not have: {', '.join(unknown)}"
        raise RefusedFolderError(FolderRefusal.UNKNOWN_OPERATION, reason)
    nothing = Trajectory(
        task=Task(UUID(int=0), draft.instruction), policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED
    )
    if against := refusals(draft, nothing, catalog, without=_OF_A_TASK):
        raise RefusedFolderError(FolderRefusal.CHECK, " ".join(against))
    return NewSkill(
        name=draft.name,
        signature=draft.signature,
        source=draft.source,
        apis=list(draft.apis),
        instruction=draft.instruction,
        described=read.described,
        slots=list(draft.slots),
        scenario=read.scenario,
        taint=f"the imported folder {read.folder}",
        manifest=msgspec.to_builtins(_manifest(read, known, catalog)),
    )


def _known(catalog: Catalog) -> dict[str, Operation]:
    return {each.api: each for app in with_builtins(catalog).apps.values() for each in app.operations.values()}


def _manifest(read: ReadSkill, known: dict[str, Operation], catalog: Catalog) -> SkillManifest:
    """That of the folder, or what the code names, with any arguments. Look-ups are always permitted."""
    named = {api: known[api] for api in read.draft.apis if known[api].method or api == COMPLETE_TASK.api}
    if read.manifest is None:
        return SkillManifest({api: AllowedOperation(each.method, each.safe) for api, each in named.items()})
    if other := read.manifest.not_in(with_builtins(catalog)):
        reason = f"the project's APIs have other operations by these names: {', '.join(other)}"
        raise RefusedFolderError(FolderRefusal.UNKNOWN_OPERATION, reason)
    return SkillManifest(
        {
            api: AllowedOperation(known[api].method, known[api].safe, allowed.arguments)
            for api, allowed in read.manifest.operations.items()
        }
    )
