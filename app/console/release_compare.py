"""Any two releases side by side: which is better, and all that one changes of the other."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.documents.reader import DocumentReader
from app.base.errors import NotFoundError
from app.console.figure_files import figures_file
from app.console.release_evidence import read_evidence
from app.console.release_figures import ReleaseVerdict, live_rows, verdict
from app.console.releases import before_active, read_periods
from app.db import evaluations, releases, results, tables
from app.db.manifests import SkillName
from app.db.tables import ReleaseState
from app.release.confidence_sequence import Interval
from app.release.diff import SkillChanges, diff
from app.skills import store as skills
from app.skills.pages import source_diff
from app.web.access import Db
from app.web.pages import Visitor, page

_MOST_SOURCES = 30  # changed skills whose source is shown

From = Annotated[int | None, QueryParameter(name="from")]
To = Annotated[int | None, QueryParameter(name="to")]


class ChangedSkill(msgspec.Struct, frozen=True):
    """A skill that the two releases have in two versions."""

    name: str
    before: int
    after: int
    diff: str


class SharedExam(msgspec.Struct, frozen=True):
    """An exam on which one run examined both releases: scenarios solved, in percent."""

    environment: str
    before: Interval
    after: Interval


class ReleaseComparePages(Controller):
    path = "/releases/compare"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(
        self,
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
        earlier: From = None,
        later: To = None,
        file: FromQuery[str] = "",
    ) -> Response[Any]:
        rows = await releases.of_project(session, visit.project.id)
        one, other = await _choose(session, rows, earlier, later)
        lives = [await results.of_release(session, each.id) for each in (one, other)]
        if file == "served":
            name = f"releases-{one.number}-{other.number}-served"
            return figures_file(name, one.number, other.number, live_rows(*lives))
        found = await diff(session, document_reader, one, other)
        return page(
            visit,
            "release_compare.html",
            releases=rows,
            one=one,
            other=other,
            verdict=_verdict(one, other),
            diff=found,
            sources=await _sources(session, found.skills) if visit.allows("skills") else [],
            exams=await _shared_exams(session, one, other) if visit.allows("admin") else [],
            live=live_rows(*lives),
            served=all(sums.score.number for sums in lives),
        )


async def _choose(
    session: AsyncSession, rows: Sequence[tables.Release], earlier: int | None, later: int | None
) -> tuple[tables.Release, tables.Release]:
    """Those of the numbers; else the active release, and the one before it. Raises NotFoundError."""
    active = next((each for each in rows if each.state is ReleaseState.ACTIVE), rows[0])
    before = before_active(await read_periods(session, rows), rows) or rows[-1]
    return (
        before if earlier is None else _numbered(rows, earlier),
        active if later is None else _numbered(rows, later),
    )


def _numbered(rows: Sequence[tables.Release], number: int) -> tables.Release:
    for each in rows:
        if each.number == number:
            return each
    raise NotFoundError(f"the project has no release {number}")


_OPPOSITE = {"better": "worse", "worse": "better"}


def _verdict(one: tables.Release, other: tables.Release) -> ReleaseVerdict | None:
    """What the evidence of either of them says about the second one."""
    found = verdict(read_evidence(other.evidence))
    if found is not None and found.against == one.number:
        return found
    found = verdict(read_evidence(one.evidence))
    if found is None or found.against != other.number:
        return None
    because = f"about release {one.number}: {found.because}" if found.because else ""
    word: Any = _OPPOSITE.get(found.word, found.word)
    return ReleaseVerdict(word=word, against=one.number, because=because, by=found.by)


async def _sources(session: AsyncSession, changes: SkillChanges) -> list[ChangedSkill]:
    """Of the skills of which each release has another version, the newest ones."""
    before, after = _newest(changes.removed), _newest(changes.added)
    both = sorted(before.keys() & after.keys())[:_MOST_SOURCES]
    known = {
        row.id: row
        for row in await skills.of_ids(session, [side[name].id for name in both for side in (before, after)])
    }
    return [
        ChangedSkill(
            name,
            before[name].version,
            after[name].version,
            source_diff(known[before[name].id], known[after[name].id]),
        )
        for name in both
        if before[name].id in known and after[name].id in known
    ]


def _newest(names: Iterable[SkillName]) -> dict[str, SkillName]:
    return {each.name: each for each in sorted(names, key=lambda each: each.version)}


async def _shared_exams(session: AsyncSession, one: tables.Release, other: tables.Release) -> list[SharedExam]:
    """Of each environment the latest run that examined both, on the same scenarios."""
    first = {(row.environment, row.run_id): row for row in await evaluations.of_release(session, one.id)}
    found = {
        row.environment: (first[row.environment, row.run_id], row)
        for row in await evaluations.of_release(session, other.id)
        if (row.environment, row.run_id) in first
    }
    return [
        SharedExam(name, *(msgspec.convert(row.figures["sgc"], Interval) for row in rows))
        for name, rows in sorted(found.items())
    ]
