"""Reads a folder of the Agent Skills format as a draft of a skill, whoever wrote it. Pure."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from app.apis.calls.skill_guard import COMPUTED, CONSTANT, NUMBER, PARAMETER, RESULT, SkillManifest
from app.base.untrusted import parse
from app.skills.agent_skills.front_matter import FrontMatter, read_front_matter
from app.skills.agent_skills.skill_folder import (
    SCRIPTS,
    SKILL_MD,
    FolderRefusal,
    RefusedFolderError,
    SkillFolder,
    check_form,
)
from app.skills.agent_skills.write_folder import PREFIX
from app.skills.extract import MAX_CHARS, Draft, draft_of, functions_of

_T = TypeVar("_T")
_MAX_INSTRUCTION = 20_000
_MAX_SCENARIO = 200
_MAX_FUNCTION = 200
_ORIGINS = {PARAMETER, CONSTANT, NUMBER, COMPUTED}


class ReadSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as its folder tells. Nothing of it is verified but its form."""

    folder: str
    draft: Draft
    described: bool  # whether its instruction is its description: the folder has no other
    scenario: str | None
    manifest: SkillManifest | None  # None: the folder has none


def read_folder(folder: SkillFolder) -> ReadSkill:
    """Takes up to a tenth of a second: run it in a thread. Raises RefusedFolderError."""
    check_form(folder)
    if SKILL_MD not in folder.files:
        raise RefusedFolderError(FolderRefusal.FRONT_MATTER, f"{SKILL_MD} is missing")
    front = read_front_matter(folder.files[SKILL_MD])
    if front.name != folder.name:
        reason = f"{SKILL_MD}: `name` is {front.name!r}: it has to be that of the folder"
        raise RefusedFolderError(FolderRefusal.FRONT_MATTER, reason)
    path = _script(folder, front)
    draft = _draft(path, folder.files[path], front)
    return ReadSkill(
        folder=folder.name,
        draft=draft,
        described=not _own(front, "instruction"),
        scenario=_bounded(front, "scenario", _MAX_SCENARIO) or None,
        manifest=_manifest(front, draft),
    )


def _script(folder: SkillFolder, front: FrontMatter) -> str:
    """The path of its Python."""
    found = [path for path in folder.files if path.startswith(SCRIPTS) and path.endswith(".py")]
    if not found:
        reason = f"it has no Python in {SCRIPTS}: a skill here is a Python function that calls the project's APIs"
        raise RefusedFolderError(FolderRefusal.NO_PYTHON, reason)
    own = [path for path in found if _stem(path) in (_own(front, "function"), folder.name.replace("-", "_"))]
    if len(found) > 1 and len(own) != 1:
        reason = f"it has {len(found)} files of Python: a skill is one, named after the folder"
        raise RefusedFolderError(FolderRefusal.SEVERAL_FILES, reason)
    return own[0] if own else found[0]


def _draft(path: str, text: str, front: FrontMatter) -> Draft:
    source = text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n")
    tree = parse(source) if len(source) <= MAX_CHARS else None
    if tree is None:
        reason = f"{path} does not compile, is longer than {MAX_CHARS:,} characters, or is too deep"
        raise RefusedFolderError(FolderRefusal.CHECK, reason)
    name = _function(path, functions_of(tree), front)
    instruction = _bounded(front, "instruction", _MAX_INSTRUCTION) or front.description
    slots = _json(front, "slots", list[str]) or []
    return draft_of(source, tree, name, instruction, [each for each in slots if each in instruction.lower()])


def _function(path: str, names: Sequence[str], front: FrontMatter) -> str:
    """Which of the functions is the skill; the others help it."""
    if not names:
        reason = f"{path} has no function at its top level: a skill is one that takes the details of a task"
        raise RefusedFolderError(FolderRefusal.NO_FUNCTION, reason)
    wanted = (_own(front, "function"), _stem(path), names[0] if len(names) == 1 else "")
    name = next((each for each in wanted if each in names), None)
    if name is None or len({*names}) < len(names):
        reason = f"{path} has several functions: name the file after the skill, and no function twice"
        raise RefusedFolderError(FolderRefusal.SEVERAL_FUNCTIONS, reason)
    if len(name) > _MAX_FUNCTION:
        raise RefusedFolderError(FolderRefusal.NAME, f"a function's name has at most {_MAX_FUNCTION} characters")
    return name


def _manifest(front: FrontMatter, draft: Draft) -> SkillManifest | None:
    manifest = _json(front, "manifest", SkillManifest)
    if manifest is None:
        return None
    if wider := sorted(manifest.operations.keys() - {*draft.apis}):
        reason = f"its manifest permits what its code does not call: {', '.join(wider)}"
        raise RefusedFolderError(FolderRefusal.MANIFEST, reason)
    for allowed in manifest.operations.values():
        for origin in (each for origins in (allowed.arguments or {}).values() for each in origins):
            if origin not in _ORIGINS and origin.removeprefix(RESULT) not in draft.apis:
                raise RefusedFolderError(FolderRefusal.MANIFEST, f"its manifest has an unknown origin, {origin!r}")
    return manifest


def _json(front: FrontMatter, key: str, kind: type[_T]) -> _T | None:
    text = _own(front, key)
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedFolderError(
            FolderRefusal.MANIFEST, f"{SKILL_MD}: {PREFIX}{key} is damaged: {error}"
        ) from error


def _bounded(front: FrontMatter, key: str, most: int) -> str:
    text = _own(front, key)
    if len(text) > most:
        reason = f"{SKILL_MD}: {PREFIX}{key} has more than {most:,} characters"
        raise RefusedFolderError(FolderRefusal.TOO_LARGE, reason)
    return text


def _own(front: FrontMatter, key: str) -> str:
    """A value of our metadata, or ""."""
    return front.metadata.get(PREFIX + key, "")


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")
