"""A skill as a folder of files, in the format of Agent Skills (agentskills.io/specification). Pure."""

import re
from enum import StrEnum
from hashlib import sha256
from typing import Annotated

import msgspec

from app.base.errors import AppError

SKILL_MD = "SKILL.md"
SCRIPTS = "scripts/"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MAX_NAME = 64
_MAX_FILES = 100
_MAX_FILE = 128 << 10  # characters
_HASH = 8


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
        dict[str, str],
        msgspec.Meta(description="`SKILL.md`, and Python such as `scripts/archive_mails.py`"),
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
