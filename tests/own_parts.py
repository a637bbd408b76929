"""Parts as another package brings them: named "tests.own_parts:...", or installed into a directory."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from app.apis.catalog import Catalog
from app.records import Trajectory
from app.skills.extract import Draft
from app.skills.fusion import Ranked
from app.skills.retrieval import Query
from app.skills.skill_index import SkillIndex

GROUPS = {
    "sage.retrieval": {"longest": "longest_instruction"},
    "sage.skill_checks": {"documented": "documented"},
}


def install(directory: Path) -> None:
    """Write what pip leaves of a package that registers the parts of this module: its metadata."""
    metadata = directory / "own_parts-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    lines: list[str] = []
    for group, parts in GROUPS.items():
        lines += [f"[{group}]", *(f"{name} = {__name__}:{attribute}" for name, attribute in parts.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def longest_instruction(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """Whatever is asked: the skills with the longest instructions that share a word."""
    keys = [key for key, _ in index.by_ngrams(query.instruction)]
    keys.sort(key=lambda key: len(index.offer(key).instruction), reverse=True)
    return [(key, {"longest": rank}) for rank, key in enumerate(keys[: query.limit], start=1)]


def documented(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill has a docstring."""
    if not draft.summary:
        yield "It has no docstring."
