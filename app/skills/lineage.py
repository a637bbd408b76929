"""The picture of where skills come from and where they go: task, skill, version, tasks. Everything is placed in
pixels; `lineage.html` draws it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.text import numbered
from app.db import tables
from app.skills import offers
from app.skills import store as skills
from app.skills.offers import ScenarioUse, SkillStats

COLUMNS = ("skill", "version", "state", "written_by", "scenario", "tasks", "used_it", "successes")
WIDTH = 890.0
_ROW, _GAP, _TOP = 46.0, 10.0, 30.0
_PLACES = ((0.0, 210.0), (250.0, 200.0), (490.0, 130.0), (660.0, 230.0))  # left and width of each column
_LETTER = 6.7  # pixels, about


class UsedVersion(msgspec.Struct, frozen=True):
    """A version of a skill, and the scenarios of the tasks that were offered it, those with most first."""

    skill: tables.Skill
    uses: Sequence[ScenarioUse]


class LineageSkill(msgspec.Struct, frozen=True):
    name: str
    versions: Sequence[UsedVersion]  # newest first

    def rows(self) -> Iterator[list[object]]:
        """The numbers of the picture."""
        for each in self.versions:
            about = [self.name, each.skill.version, each.skill.state, each.skill.task_id]
            for scenario, stats in [(use.scenario, use.stats) for use in each.uses] or [(None, SkillStats())]:
                yield [*about, scenario, *msgspec.structs.astuple(stats)]


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` and `id` say what it stands for; a box without an id leads nowhere."""

    kind: str
    x: float
    y: float
    width: float
    height: float = _ROW
    title: str
    note: str = ""
    state: str = ""
    id: UUID | None = None

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


class Lineage(msgspec.Struct, frozen=True):
    boxes: list[Box]
    edges: list[tuple[str, int]]  # path, and how thick it is
    height: float
    width: float = WIDTH


async def read_lineages(session: AsyncSession, project_id: UUID, names: Sequence[str]) -> list[LineageSkill]:
    """Of all versions of these names, in their order."""
    versions: dict[str, list[tables.Skill]] = defaultdict(list)
    for each in await skills.of_names(session, project_id, names):
        versions[each.name].append(each)
    uses: dict[UUID, list[ScenarioUse]] = defaultdict(list)
    for use in await offers.by_scenario(session, [each.id for rows in versions.values() for each in rows]):
        uses[use.skill_id].append(use)
    return [
        LineageSkill(name, [UsedVersion(each, uses[each.id]) for each in versions[name]])
        for name in names
        if versions[name]
    ]


def draw(skills: Sequence[LineageSkill], versions: int = 5, scenarios: int = 4) -> Lineage:
    """One below the other; of many versions, and many scenarios of one, the first ones."""
    boxes: list[Box] = []
    edges: list[tuple[str, int]] = []
    top = _TOP
    for skill in skills:
        own, ways = _draw_skill(skill, list(_rows(skill, top, versions, scenarios)))
        boxes += own
        edges += ways
        top = max(box.y + box.height for box in own) + 2 * _GAP
    return Lineage(boxes, edges, top)


def _draw_skill(
    skill: LineageSkill, rows: Sequence[tuple[UsedVersion, list[Box]]]
) -> tuple[list[Box], list[tuple[str, int]]]:
    first, last = rows[0][1][0], rows[-1][1][-1]
    middle = (first.y + last.y + last.height) / 2
    name = _box("skill", 1, middle - _ROW / 2, skill.name, numbered(len(skill.versions), "version"))
    boxes, edges = [name], []
    for version, uses in rows:
        at = (uses[0].y + uses[-1].y + uses[-1].height) / 2 - _ROW / 2
        row = version.skill
        own = _box("version", 2, at, f"version {row.version}", row.state, row.state, row.id)
        maker = _box("task", 0, at, row.instruction or "a task that is gone", "wrote it", id=row.task_id)
        boxes += [maker, own, *uses]
        edges += [(_edge(maker, name), 1), (_edge(name, own), 1)]
        edges += [
            (_edge(own, box), _thickness(use.stats.uses)) for box, use in zip(uses, version.uses, strict=False)
        ]
    if (more := len(skill.versions) - len(rows)) > 0:
        under = rows[-1][1][-1].y + _ROW + _GAP
        boxes.append(_box("more", 2, under, f"{more} more"))
    return boxes, edges


def _rows(
    skill: LineageSkill, top: float, versions: int, scenarios: int
) -> Iterator[tuple[UsedVersion, list[Box]]]:
    """The versions that were used most, each with the boxes of its scenarios."""
    most_used = sorted(skill.versions, key=lambda each: -sum(use.stats.uses for use in each.uses))[:versions]
    for version in (each for each in skill.versions if each in most_used):
        boxes: list[tuple[str, str, str, UUID | None]] = [
            ("uses", use.scenario or "no scenario", _summary(use.stats), version.skill.id)
            for use in version.uses[:scenarios]
        ]
        if (more := len(version.uses) - len(boxes)) > 0:
            boxes.append(("more", f"{more} more scenarios", "", None))
        boxes = boxes or [("more", "not offered yet", "", None)]
        yield (
            version,
            [
                _box(kind, 3, top + place * (_ROW + _GAP), title, note, id=id)
                for place, (kind, title, note, id) in enumerate(boxes)
            ],
        )
        top += len(boxes) * (_ROW + _GAP)


def _summary(stats: SkillStats) -> str:
    """
    >>> _summary(SkillStats(offers=5, uses=4, successes=3)), _summary(SkillStats(offers=1))
    ('4 of 5 used it, 75 % well', '0 of 1 used it')
    """
    text = f"{stats.uses:,} of {stats.offers:,} used it"
    return f"{text}, {100 * stats.successes / stats.uses:.0f} % well" if stats.uses else text


def _box(
    kind: str, column: int, y: float, title: str, note: str = "", state: str = "", id: UUID | None = None
) -> Box:
    x, width = _PLACES[column]
    letters = int((width - 20) / _LETTER)
    return Box(
        kind=kind, x=x, y=y, width=width, title=_cut(title, letters), note=_cut(note, letters), state=state, id=id
    )


def _cut(text: str, most: int) -> str:
    """
    >>> _cut("archive the mails", 11), _cut("short", 11)
    ('archive th…', 'short')
    """
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _edge(one: Box, other: Box) -> str:
    left, right = one.x + one.width, other.x
    half = (left + right) / 2
    return (
        f"M{left:g},{one.middle:g} C{half:g},{one.middle:g} {half:g},{other.middle:g} {right:g},{other.middle:g}"
    )


def _thickness(uses: int) -> int:
    """
    >>> [_thickness(uses) for uses in (0, 9, 99, 12_000)]
    [1, 2, 3, 5]
    """
    return min(5, len(str(uses + 1)))
