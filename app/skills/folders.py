"""Skills as folders of files, in the format of Agent Skills (agentskills.io/specification): written so that other
agents can read them, read back whoever wrote them, checked as what the agent writes, and imported.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
import yaml

from app.apis.calls.skill_guard import (
    COMPUTED,
    CONSTANT,
    NUMBER,
    PARAMETER,
    RESULT,
    AllowedOperation,
    SkillManifest,
)
from app.apis.catalog import COMPLETE_TASK, Catalog, Operation, with_builtins
from app.base.errors import AppError
from app.base.text import shortened
from app.base.untrusted import parse
from app.base.values import Policy, Stop, Task, Trajectory
from app.db import tables
from app.skills.checks import refusals
from app.skills.extract import MAX_CHARS, Draft, draft_of, functions_of, summary_of
from app.skills.offers import SkillStats
from app.skills.store import NewSkill

_T = TypeVar("_T")

SKILL_MD = "SKILL.md"
SCRIPTS = "scripts/"
PREFIX = "sage-"  # of our metadata
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HASH = 8  # digits in the folder's name of a function that is no name of a folder
_FENCE = "---"
_SHOWN = 500  # characters of an instruction in a text for people

# What the format allows, and what is taken of it: characters, but for files, and nodes and depth of YAML.
_MAX_NAME = 64
_MAX_FILES = 100
_MAX_FILE = 128 << 10
_MAX_NODES, _MAX_DEPTH = 1_000, 16
_MAX_DESCRIPTION, _MAX_COMPATIBILITY = 1024, 500
_MAX_INSTRUCTION, _MAX_SCENARIO, _MAX_FUNCTION = 20_000, 200, 200

_ORIGINS = {PARAMETER, CONSTANT, NUMBER, COMPUTED}
_OF_A_TASK = ("returned", "task_details")  # checks about the task that wrote a skill: there is none here


class FolderRefusal(StrEnum):
    """Why a folder is not imported."""

    FOLDER_NAME = "folder_name"  # it is not a name of the format
    TOO_LARGE = "too_large"
    PATH = "path"  # a file's path leads out of the folder
    FRONT_MATTER = "front_matter"  # SKILL.md is missing, or its front matter is not what the format says
    NO_PYTHON = "no_python"  # it has instructions only, or scripts in another language
    SEVERAL_FILES = "several_files"  # of Python, of which none is named after the folder
    NO_FUNCTION = "no_function"
    SEVERAL_FUNCTIONS = "several_functions"  # of which none is named after the file
    UNKNOWN_OPERATION = "unknown_operation"  # the project's APIs lack one, or have it as something else
    MANIFEST = "manifest"  # it is damaged, or permits more than the code calls
    CHECK = "check"  # of the checks that new skills have to pass
    NAME_CLASH = "name_clash"  # another folder of this import has the same function
    NAME = "name"  # of the function is too long


class RefusedFolderError(AppError):
    """A folder cannot be imported."""

    def __init__(self, kind: FolderRefusal, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SkillFolder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its name, and its text files by their path in it."""

    name: Annotated[str, msgspec.Meta(examples=["archive-mails"])]
    files: Annotated[
        dict[str, str], msgspec.Meta(description="`SKILL.md`, and Python such as `scripts/archive_mails.py`")
    ]


def folder_name(function: str) -> str:
    """The folder of a function, which no other function has.

    >>> folder_name("archive_mails"), folder_name("Archive__mails")
    ('archive-mails', 'archive-mails-8ffdc23f')
    """
    plain = "-".join(re.findall(r"[a-z0-9]+", function.lower()))
    if plain.replace("-", "_") == function and len(plain) <= _MAX_NAME:
        return plain
    known = sha256(function.encode()).hexdigest()[:_HASH]
    return f"{plain[: _MAX_NAME - _HASH - 1].rstrip('-')}-{known}".lstrip("-")


def script_path(function: str) -> str:
    """Where the code of a function is."""
    stem = function if function.isascii() and len(function) <= _MAX_NAME else folder_name(function)
    return f"{SCRIPTS}{stem}.py"


def check_form(folder: SkillFolder) -> None:
    """Raises RefusedFolderError for a folder that is too large, or whose names are not those of the format."""
    if not _NAME.fullmatch(folder.name) or len(folder.name) > _MAX_NAME:
        rule = f"1 to {_MAX_NAME} lower-case letters, digits and single hyphens between them"
        raise RefusedFolderError(FolderRefusal.FOLDER_NAME, f"the name of the folder has to be {rule}")
    if len(folder.files) > _MAX_FILES:
        raise RefusedFolderError(FolderRefusal.TOO_LARGE, f"it has more than {_MAX_FILES} files")
    for path, text in folder.files.items():
        parts = path.split("/")
        if not all(parts) or {".", ".."} & {*parts} or "\\" in path or "\0" in path:
            raise RefusedFolderError(FolderRefusal.PATH, f"{path!r} is no path of a file in the folder")
        if len(text) > _MAX_FILE:
            raise RefusedFolderError(FolderRefusal.TOO_LARGE, f"{path} is longer than {_MAX_FILE:,} characters")


class FrontMatter(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that the format has; others are ignored."""

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = {}


def render(front: FrontMatter, body: str) -> str:
    """A whole SKILL.md."""
    fields = {name: value for name, value in msgspec.to_builtins(front).items() if value}
    text = yaml.safe_dump(fields, allow_unicode=True, sort_keys=False, width=float("inf"))
    return f"{_FENCE}\n{text}{_FENCE}\n\n{body}"


def read_front_matter(text: str) -> FrontMatter:
    """The front matter of a SKILL.md. Its values are text: neither tags nor types of YAML are resolved.

    Raises RefusedFolderError.
    """
    first, *lines = text.removeprefix("\ufeff").split("\n")
    if first.rstrip() != _FENCE or _FENCE not in (ends := [line.rstrip() for line in lines]):
        raise _refused("it has to begin with YAML between two lines of ---")
    try:
        found = yaml.load("\n".join(lines[: ends.index(_FENCE)]), _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 2}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error) or "it is nested too deeply"
        raise _refused(f"its front matter is not valid YAML: {place}{reason}") from error
    if not isinstance(found, dict):
        raise _refused("its front matter has to be a mapping")
    return _checked(found)


def _checked(found: dict[str, Any]) -> FrontMatter:
    try:
        front = msgspec.convert(found, FrontMatter)
    except msgspec.ValidationError as error:
        raise _refused(f"its front matter does not have the form that it should have: {error}") from error
    for text in (front.name, front.description, *front.metadata, *front.metadata.values()):
        if not _is_storable(text):
            raise _refused("its front matter has a character that is none (NUL, or half a surrogate pair)")
    if not front.description.strip() or len(front.description) > _MAX_DESCRIPTION:
        raise _refused(f"`description` has to have 1 to {_MAX_DESCRIPTION:,} characters")
    return front


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refused(reason: str) -> RefusedFolderError:
    return RefusedFolderError(FolderRefusal.FRONT_MATTER, f"SKILL.md: {reason}")


class _Loader(yaml.BaseLoader):
    """Loads texts, lists and mappings, in pure Python: libyaml's recursion can end the process.

    Without aliases, and with few nodes, a small text stays small.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def fetch_flow_collection_start(self, kind: Any) -> None:
        if self.flow_level >= _MAX_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
        super().fetch_flow_collection_start(kind)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise yaml.YAMLError(f"it has more than {_MAX_NODES:,} values")
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias: write the value out")
        return super().compose_node(parent, index)


def write_folder(
    skill: tables.Skill, manifest: SkillManifest, stats: SkillStats, release: int | None
) -> SkillFolder:
    """With how the skill has done, and the number of the release whose task wrote it."""
    name, script = folder_name(skill.name), script_path(skill.name)
    front = FrontMatter(
        name=name,
        description=_description(skill),
        compatibility=shortened(
            f"Python for sage-server: `apis` has to have {', '.join(manifest.operations) or 'no operation'}.",
            _MAX_COMPATIBILITY,
        ),
        metadata={PREFIX + key: value for key, value in _metadata(skill, manifest, stats, release) if value},
    )
    body = "\n".join(_body(skill, manifest, front.description, script))
    files = {SKILL_MD: render(front, body), script: skill.source.rstrip("\n") + "\n"}
    return SkillFolder(name, files)


def _metadata(
    skill: tables.Skill, manifest: SkillManifest, stats: SkillStats, release: int | None
) -> Iterator[tuple[str, str]]:
    yield "function", skill.name
    yield "signature", skill.signature
    yield "instruction", "" if skill.described else skill.instruction
    yield "scenario", skill.scenario or ""
    yield "slots", msgspec.json.encode(skill.slots).decode()
    yield "manifest", msgspec.json.encode(manifest).decode()
    yield "version", str(skill.version)
    yield "state", skill.state
    yield "release", "" if release is None else str(release)
    yield "uses", str(stats.uses)
    yield "successes", str(stats.successes)


def _description(skill: tables.Skill) -> str:
    """What it does, and when to use it. The same for every copy of a skill."""
    if skill.described:
        return skill.instruction
    does = summary_of(skill.source, skill.name).rstrip(".") or f"Calls {skill.signature}"
    when = [f"tasks such as: {_line(skill.instruction)}"]
    if skill.scenario:
        when.append(f"the scenario: {_line(skill.scenario)}")
    return shortened(f"{_line(does)}. Use it for {'; for '.join(when)}", _MAX_DESCRIPTION)


def _body(skill: tables.Skill, manifest: SkillManifest, description: str, script: str) -> Iterator[str]:
    yield from (f"# {skill.name}", "", description, "")
    yield from ("## When to use it", "")
    if skill.described:
        yield "- For what it is described to do."
    else:
        yield f"- For a task such as: {_line(skill.instruction)}"
    if skill.scenario:
        yield f"- For tasks of the scenario: {_line(skill.scenario)}"
    yield from ("", "## How to use it", "")
    yield f"Call `{_line(skill.signature)}` of [{script}]({script})."
    yield "Its code runs where `apis` has these operations, and may call no others:"
    yield ""
    for api, allowed in manifest.operations.items():
        reads = ", only reads" if allowed.safe else ""
        yield f"- `{api}`" + (f" ({allowed.method}{reads})" if allowed.method else "")
    yield ""


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _SHOWN)


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


def check_folder(read: ReadSkill, catalog: Catalog) -> NewSkill:
    """The skill, whose manifest permits no more than what its code names and the catalog has.

    Raises RefusedFolderError.
    """
    draft = read.draft
    there = with_builtins(catalog)
    known = {each.api: each for app in there.apps.values() for each in app.operations.values()}
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
        manifest=msgspec.to_builtins(_checked_manifest(read, known, there)),
    )


def _checked_manifest(read: ReadSkill, known: dict[str, Operation], there: Catalog) -> SkillManifest:
    """That of the folder, or what the code names, with any arguments. Look-ups are always permitted."""
    named = {api: known[api] for api in read.draft.apis if known[api].method or api == COMPLETE_TASK.api}
    if read.manifest is None:
        return SkillManifest({api: AllowedOperation(each.method, each.safe) for api, each in named.items()})
    if other := read.manifest.not_in(there):
        reason = f"the project's APIs have other operations by these names: {', '.join(other)}"
        raise RefusedFolderError(FolderRefusal.UNKNOWN_OPERATION, reason)
    return SkillManifest(
        {
            api: AllowedOperation(known[api].method, known[api].safe, allowed.arguments)
            for api, allowed in read.manifest.operations.items()
        }
    )


def read_all(folders: Sequence[SkillFolder]) -> list[ReadSkill | RefusedFolderError]:
    """In the same order. Of two folders with one function, the second one is refused."""
    found: list[ReadSkill | RefusedFolderError] = []
    functions: dict[str, str] = {}  # and the folders that have them
    for folder in folders:
        try:
            read = read_folder(folder)
        except RefusedFolderError as error:
            found.append(error)
            continue
        name = read.draft.name
        if name in functions:
            reason = f"the folder {functions[name]} has a function {name}, too: import one of them"
            found.append(RefusedFolderError(FolderRefusal.NAME_CLASH, reason))
        else:
            functions[name] = read.folder
            found.append(read)
    return found


def check_all(
    found: Sequence[ReadSkill | RefusedFolderError], catalog: Catalog
) -> list[NewSkill | RefusedFolderError]:
    """In the same order."""
    checked: list[NewSkill | RefusedFolderError] = []
    for each in found:
        try:
            checked.append(each if isinstance(each, RefusedFolderError) else check_folder(each, catalog))
        except RefusedFolderError as error:
            checked.append(error)
    return checked
