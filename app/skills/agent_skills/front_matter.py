"""The front matter of a SKILL.md: YAML between two lines of three hyphens. Pure."""

from typing import Any

import msgspec
import yaml

from app.skills.agent_skills.skill_folder import FolderRefusal, RefusedFolderError

MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
_FENCE = "---"
_MAX_NODES = 1_000
_MAX_DEPTH = 16


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
    if not front.description.strip() or len(front.description) > MAX_DESCRIPTION:
        raise _refused(f"`description` has to have 1 to {MAX_DESCRIPTION:,} characters")
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
