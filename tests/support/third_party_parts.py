"""Parts as another package brings them: named "tests.support.third_party_parts:...", or installed into a
directory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

import msgspec

from app.apis.catalog import App, Catalog, Operation, Parameter
from app.apis.documents.protocols import OutgoingRequest
from app.base.values import Json, Trajectory
from app.skills.extract import Draft
from app.skills.search import Query, SkillIndex
from app.skills.similarity import Ranked

GROUPS = {
    "sage.retrieval": {"longest": "longest_instruction"},
    "sage.skill_checks": {"documented": "documented"},
    "sage.api_protocols": {"procedures": "PROCEDURES"},
}


def install(directory: Path) -> None:
    """Write what pip leaves of a package that registers the parts of this module: its metadata."""
    metadata = directory / "third_party_parts-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party-parts\nVersion: 1.0\n")
    lines: list[str] = []
    for group, parts in GROUPS.items():
        lines += [f"[{group}]", *(f"{name} = {__name__}:{attribute}" for name, attribute in parts.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def longest_instruction(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """The skills that share a word with the instruction, the longest first."""
    keys = [key for key, _ in index.by_ngrams(query.instruction)]
    keys.sort(key=lambda key: len(index.offer(key).instruction), reverse=True)
    return [(key, {"longest": rank}) for rank, key in enumerate(keys[: query.limit], start=1)]


def documented(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill has a docstring."""
    if not draft.summary:
        yield "It has no docstring."


class Procedures:
    """A protocol: the document lists the arguments of each procedure, all are called at one address."""

    def recognizes(self, document: Mapping[str, Json]) -> bool:
        return "procedures" in document

    def parse(self, name: str, document: Mapping[str, Json], _source: str | None, server: str | None) -> App:
        operations = {each: _operation(name, each, given) for each, given in document["procedures"].items()}
        address = server or document["address"]
        return App(name=name, description="", server=address, variables={}, operations=operations, digest="")

    def encode(self, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
        content = msgspec.json.encode({"call": operation.name, "with": arguments})
        return OutgoingRequest("/call", {"Content-Type": "application/json"}, content)


PROCEDURES = Procedures()


def _operation(app: str, name: str, arguments: list[str]) -> Operation:
    parameters = tuple(
        Parameter(name=each, wire_name=each, place="body", required=True, schema={}) for each in arguments
    )
    return Operation(app=app, name=name, method="POST", path="", summary="", parameters=parameters)
