"""Exams in the database."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import ceil
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import Row, func, select
from sqlalchemy import delete as sql_delete
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError, NotFoundError
from app.base.values import GOOD
from app.db import tables
from app.db.queries import in_array
from app.db.scored_log import UnlabelledTask, place, scored, unlabelled
from app.db.tables import ExamSource
from app.projects import store as projects
from app.projects.settings import OWN_WORK, SET, is_held_out, kind_of

_KINDS, _TASKS_EACH = 200, 3  # of an exam from the log, unless it says otherwise
_KEPT = 20  # versions of the exam that grows by itself

KindRule: TypeAlias = Callable[[UUID, str, str | None], str]
"""The kind of a task: by its id, its instruction and its scenario."""

_exam, _member, _task = tables.Exam, tables.ExamTask, tables.Task


class NewExamTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task for an exam; with the id of the served task that it repeats, if it does."""

    instruction: str
    scenario: str | None = None
    variables: dict[str, str] = {}
    check_code: str | None = None
    task_id: UUID | None = None


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a project's runs must not learn from."""

    project_id: UUID
    percent: float  # of kinds, by their hash
    tasks: Sequence[NewExamTask]  # of exams, in no order
    logged: Sequence[UnlabelledTask] = ()  # by which tasks without a scenario are told apart, oldest first


async def put(
    session: AsyncSession, project_id: UUID, name: str, source: ExamSource, tasks: Sequence[NewExamTask]
) -> tables.Exam:
    """Store a new version, or return the newest if it has the same tasks."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"exams {project_id}", 0))))
    digest = hashlib.sha256(msgspec.json.encode(tasks, order="deterministic")).hexdigest()
    newest = await _newest(session, project_id, name)
    if newest is not None and newest.digest == digest:
        return newest
    version = 1 if newest is None else newest.version + 1
    exam = _exam(project_id=project_id, name=name, version=version, digest=digest, source=source)
    session.add(exam)
    await session.flush()
    rows = [
        {"exam_id": exam.id, "position": place, **msgspec.structs.asdict(each)} for place, each in enumerate(tasks)
    ]
    if rows:
        await session.execute(insert(_member), rows)
    return exam


async def get(
    session: AsyncSession, project_id: UUID, name: str, version: int | None = None, digest: str | None = None
) -> tables.Exam:
    """One version, by its number or the beginning of its digest, or the newest. Raises NotFoundError."""
    exam = await _newest(session, project_id, name, version, digest)
    if exam is None:
        which = "" if version is None else f" in version {version}"
        which += "" if digest is None else f" with the digest {digest}"
        raise NotFoundError(f"this project has no exam {name!r}{which}; GET /v1/exams lists them")
    return exam


async def newest(session: AsyncSession, project_id: UUID | None) -> Sequence[tables.Exam]:
    """The newest version of each exam, by name; of all projects for None."""
    query = select(_exam).ext(distinct_on(_exam.project_id, _exam.name))
    query = query.order_by(_exam.project_id, _exam.name, _exam.version.desc())
    if project_id is not None:
        query = query.where(_exam.project_id == project_id)
    return (await session.scalars(query)).all()


async def versions(session: AsyncSession, project_id: UUID, name: str) -> Sequence[tables.Exam]:
    """Newest first."""
    query = select(_exam).where(_exam.project_id == project_id, _exam.name == name).order_by(_exam.version.desc())
    return (await session.scalars(query)).all()


async def delete(session: AsyncSession, project_id: UUID, name: str) -> None:
    """Delete all versions. Raises NotFoundError."""
    gone = sql_delete(_exam).where(_exam.project_id == project_id, _exam.name == name).returning(_exam.id)
    if not (await session.scalars(gone)).all():
        raise NotFoundError(f"this project has no exam {name!r}; GET /v1/exams lists them")


async def tasks_of(session: AsyncSession, exam_id: UUID) -> Sequence[tables.ExamTask]:
    """In their order."""
    return (
        await session.scalars(select(_member).where(_member.exam_id == exam_id).order_by(_member.position))
    ).all()


async def from_log(
    session: AsyncSession,
    project_id: UUID,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    scenarios: Collection[str] | None = None,
    kinds: int = _KINDS,
    tasks_each: int = _TASKS_EACH,
) -> list[NewExamTask]:
    """The scored tasks of the latest kinds that ended from `since` up to, not at, `until`.

    Of each kind the best, and of these the latest: a solved task shows what is right.
    """
    query = scored(project_id)
    if since is not None:
        query = query.where(_task.finished_at >= since)
    if until is not None:
        query = query.where(_task.finished_at < until)
    if scenarios is not None:
        query = query.where(_task.scenario.in_(scenarios))
    rows = (await session.execute(query)).all()
    latest = _latest(rows, lambda _: True, kinds, by_name)
    return _chosen({each: _best(of_kind)[:tasks_each] for each, of_kind in latest.items()})


async def of_tasks(session: AsyncSession, project_id: UUID, ids: Sequence[UUID]) -> list[NewExamTask]:
    """These tasks of the log, in this order. Raises InvalidError for one of another project or without a score,
    and for one that is named twice: it would count as evidence twice.
    """
    if twice := [str(each) for each, count in Counter(ids).items() if count > 1]:
        raise InvalidError(f"tasks that are named more than once: {', '.join(twice[:5])}")
    rows = (await session.execute(scored(project_id).where(in_array(_task.id, ids)))).all()
    found = {row.id: _new(row) for row in rows}
    if missing := [str(each) for each in ids if each not in found]:
        raise InvalidError(
            f"tasks that are no scored tasks of this project: {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > len(missing[:5]) else ''}"
        )
    return [found[each] for each in ids]


async def grow_holdout(session: AsyncSession, project_id: UUID, kind: KindRule) -> tables.Exam | None:
    """Refresh the exam of what the project holds out. None where it holds out nothing, or none of it has a score.

    All tasks of one `kind` are held out, or none. The oldest kinds drop out where there are more than fit. The
    fewer there are, the more scenarios there are of each: beyond the first, only of tasks that were solved, since
    others show nothing.
    """
    percent = projects.settings_of(await projects.by_id(session, project_id)).holdout_percent
    if not percent:
        return None
    rows = (await session.execute(scored(project_id))).all()
    latest = _latest(rows, lambda kind: is_held_out(project_id, kind, percent), _KINDS, kind)
    most = SET * ceil(_KINDS / max(1, len(latest)))
    chosen = {each: _with_solved(of_kind, most) for each, of_kind in latest.items()}
    if not chosen:
        return None
    await place(session, {row.id: each for each, rows in chosen.items() for row in rows if row.scenario is None})
    exam = await put(session, project_id, OWN_WORK, ExamSource.HOLDOUT, _chosen(chosen))
    own = _exam.project_id == project_id, _exam.name == OWN_WORK
    await session.execute(sql_delete(_exam).where(*own, _exam.version <= exam.version - _KEPT))
    return exam


async def held_out(session: AsyncSession, project_id: UUID, exam_ids: Collection[UUID] = ()) -> HeldOut:
    """The newest version of each exam and those with these ids, and the kinds that the project holds out."""
    settings = projects.settings_of(await projects.by_id(session, project_id))
    ids = {exam.id for exam in await newest(session, project_id)} | set(exam_ids)
    query = select(_member.instruction, _member.scenario, _member.task_id).where(in_array(_member.exam_id, ids))
    rows = (await session.execute(query.distinct())).all()
    return HeldOut(
        project_id=project_id,
        percent=settings.holdout_percent,
        tasks=[NewExamTask(**row._mapping) for row in rows],
        logged=await unlabelled(session, project_id) if rows or settings.holdout_percent else (),
    )


def by_name(task_id: UUID, instruction: str, scenario: str | None) -> str:  # noqa: ARG001  a `KindRule`
    """A kind for each scenario, and for each instruction without one."""
    return kind_of(instruction, scenario)


def _latest(
    rows: Iterable[Row[Any]], wanted: Callable[[str], bool], kinds: int, kind: KindRule
) -> dict[str, list[Row[Any]]]:
    """Of `rows`, which are newest first, those of the latest kinds."""
    by_kind: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        by_kind[kind(row.id, row.instruction, row.scenario)].append(row)
    return {each: by_kind[each] for each in islice(filter(wanted, by_kind), kinds)}


def _best(rows: Iterable[Row[Any]]) -> list[Row[Any]]:
    return sorted(rows, key=lambda row: -row.score)


def _with_solved(rows: Iterable[Row[Any]], most: int) -> list[Row[Any]]:
    best = _best(rows)
    solved = [row for row in best[SET:most] if row.score >= GOOD]
    return best[:SET] + solved[: len(solved) // SET * SET]


def _chosen(rows: Mapping[str, Iterable[Row[Any]]]) -> list[NewExamTask]:
    of_kinds = (sorted(rows[kind], key=lambda row: (row.finished_at, row.id)) for kind in sorted(rows))
    return [_new(row) for of_kind in of_kinds for row in of_kind]


def _new(row: Row[Any]) -> NewExamTask:
    return NewExamTask(
        instruction=row.instruction,
        scenario=row.scenario,
        variables=row.variables,
        check_code=row.check_code,
        task_id=row.id,
    )


async def _newest(
    session: AsyncSession, project_id: UUID, name: str, version: int | None = None, digest: str | None = None
) -> tables.Exam | None:
    query = select(_exam).where(_exam.project_id == project_id, _exam.name == name)
    if version is not None:
        query = query.where(_exam.version == version)
    if digest is not None:
        query = query.where(_exam.digest.startswith(digest, autoescape=True))
    return (await session.scalars(query.order_by(_exam.version.desc()).limit(1))).first()
