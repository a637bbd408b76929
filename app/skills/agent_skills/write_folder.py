"""Writes a skill as a folder that other agents can read, and that `read_folder` reads back as it was. Pure."""

from collections.abc import Iterator

import msgspec

from app.apis.calls.skill_guard import SkillManifest
from app.db import tables
from app.skills.agent_skills.front_matter import MAX_COMPATIBILITY, MAX_DESCRIPTION, FrontMatter, render
from app.skills.agent_skills.skill_folder import SKILL_MD, SkillFolder, folder_name, script_path
from app.skills.extract import summary_of

PREFIX = "sage-"  # of our metadata
_SHOWN = 500  # characters of an instruction in a text for people


class FolderProvenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a skill comes from, and how it has done."""

    release: int | None  # whose task wrote it
    uses: int
    successes: int


def write_folder(skill: tables.Skill, manifest: SkillManifest, provenance: FolderProvenance) -> SkillFolder:
    name, script = folder_name(skill.name), script_path(skill.name)
    front = FrontMatter(
        name=name,
        description=_description(skill),
        compatibility=_cut(
            f"Python for sage-server: `apis` has to have {', '.join(manifest.operations) or 'no operation'}.",
            MAX_COMPATIBILITY,
        ),
        metadata={PREFIX + key: value for key, value in _metadata(skill, manifest, provenance) if value},
    )
    body = "\n".join(_body(skill, manifest, front.description, script))
    files = {SKILL_MD: render(front, body), script: skill.source.rstrip("\n") + "\n"}
    return SkillFolder(name, files)


def _metadata(
    skill: tables.Skill, manifest: SkillManifest, provenance: FolderProvenance
) -> Iterator[tuple[str, str]]:
    yield "function", skill.name
    yield "signature", skill.signature
    yield "instruction", "" if skill.described else skill.instruction
    yield "scenario", skill.scenario or ""
    yield "slots", msgspec.json.encode(skill.slots).decode()
    yield "manifest", msgspec.json.encode(manifest).decode()
    yield "version", str(skill.version)
    yield "state", skill.state
    yield "release", "" if provenance.release is None else str(provenance.release)
    yield "uses", str(provenance.uses)
    yield "successes", str(provenance.successes)


def _description(skill: tables.Skill) -> str:
    """What it does, and when to use it. The same for every copy of a skill."""
    if skill.described:
        return skill.instruction
    does = summary_of(skill.source, skill.name).rstrip(".") or f"Calls {skill.signature}"
    when = [f"tasks such as: {_line(skill.instruction)}"]
    if skill.scenario:
        when.append(f"the scenario: {_line(skill.scenario)}")
    return _cut(f"{_line(does)}. Use it for {'; for '.join(when)}", MAX_DESCRIPTION)


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
    return _cut(" ".join(text.split()), _SHOWN)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
