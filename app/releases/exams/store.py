"""Exams in the database: their tasks, how much they can examine, and the evaluations of releases on them.

They are made of the scored tasks of a project that say all in their instructions, and of kinds of tasks that
are held out of training.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import ceil
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import Row, Select, and_, func, select
from sqlalchemy import delete as sql_delete
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError, NotFoundError
from app.base.run_settings import MIN_JUDGED, MIN_KINDS, MIN_SCENARIOS
from app.base.values import GOOD, Json, Stop, TrajectoryCalls
from app.db import tables
from app.db.queries import in_array
from app.db.results import executed, proven
from app.db.tables import ExamSource
from app.projects import store as projects
from app.projects.kinds import OWN_WORK, SET, is_held_out, kind_of, sets_of
from app.releases import store as releases

_READ = 20_000  # tasks, newest first
_LOOKED_AT = 5_000  # of those without a scenario: what they called
_BATCH = 200
_KINDS, _TASKS_EACH = 200, 3  # of an exam from the log, unless it says otherwise
_KEPT = 20  # versions of the exam that grows by itself
_COLUMNS = ("id", "instruction", "scenario", "variables", "check_code", "score", "finished_at")

_task, _placed, _skill, _trajectory = tables.Task, tables.PlacedTask, tables.Skill, tables.Trajectory
_exam, _member = tables.Exam, tables.ExamTask

Ground: TypeAlias = Literal["recorded", "staging"]
KindRule: TypeAlias = Callable[[UUID, str, str | None], str]
"""The kind of a task: by its id, its instruction and its scenario."""


class UnlabelledTask(msgspec.Struct, frozen=True, kw_only=True):
    """A scored task without a scenario, and what shows which others are like it."""

    id: UUID
    instruction: str
    slots: frozenset[str] = frozenset()  # words of the instruction that its skills took as arguments
    operations: frozenset[str] = frozenset()  # that answered
    solved: bool = True
    kind: str | None = None  # if it was placed before


def scored(project_id: UUID) -> Select[Any]:
    """Newest first."""
    return (
        select(*(getattr(_task, name) for name in _COLUMNS))
        .where(_task.project_id == project_id, proven().is_not(None), _task.skill_run.is_(None))
        .where(_task.conversation == "")  # the instruction says all
        .where(executed())
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(_READ)
    )


async def unlabelled(session: AsyncSession, project_id: UUID) -> list[UnlabelledTask]:
    """The latest scored tasks without a scenario whose trajectories were kept, oldest first."""
    latest = scored(project_id).subquery()
    query = select(latest.c.id, latest.c.instruction, latest.c.score, _placed.kind)
    query = query.outerjoin(_placed, _placed.task_id == latest.c.id).where(latest.c.scenario.is_(None))
    newest = query.order_by(latest.c.finished_at.desc(), latest.c.id).limit(_LOOKED_AT)
    rows = (await session.execute(newest)).all()[::-1]
    slots = await _slots(session, project_id) if rows else {}
    found = []
    for start in range(0, len(rows), _BATCH):
        some = rows[start : start + _BATCH]
        operations = await _operations(session, [row.id for row in some])
        found += [
            UnlabelledTask(
                id=row.id,
                instruction=row.instruction,
                slots=frozenset(slots.get(row.id, ())),
                operations=operations[row.id],
                solved=row.score >= GOOD,
                kind=row.kind,
            )
            for row in some
            if row.id in operations
        ]
    return found


async def place(session: AsyncSession, kinds: Mapping[UUID, str]) -> None:
    """Keep the kinds of tasks without a scenario; one that was placed before stays where it is."""
    there = select(_task.id).where(in_array(_task.id, kinds)).with_for_update(read=True, key_share=True)
    rows = [{"task_id": task_id, "kind": kinds[task_id]} for task_id in await session.scalars(there)]
    if rows:
        await session.execute(insert(_placed).on_conflict_do_nothing(), rows)


async def kinds_of(session: AsyncSession, task_ids: Collection[UUID]) -> dict[UUID, str]:
    """Of the tasks that were placed."""
    query = select(_placed.task_id, _placed.kind).where(in_array(_placed.task_id, task_ids))
    return {row.task_id: row.kind for row in await session.execute(query)}


async def _slots(session: AsyncSession, project_id: UUID) -> dict[UUID, set[str]]:
    """Of the tasks that wrote skills."""
    written = select(_skill.task_id, _skill.slots).where(_skill.project_id == project_id)
    found: dict[UUID, set[str]] = defaultdict(set)
    for task_id, words in await session.execute(written):
        if task_id is not None:
            found[task_id].update(words)
    return found


async def _operations(session: AsyncSession, task_ids: Sequence[UUID]) -> dict[UUID, frozenset[str]]:
    """Of the tasks whose trajectories were kept."""
    query = select(_trajectory.task_id, _trajectory.record).where(in_array(_trajectory.task_id, task_ids))
    return {
        task_id: frozenset(
            call.api
            for turn in msgspec.msgpack.decode(record, type=TrajectoryCalls).turns
            for call in turn.calls
            if call.error is None
        )
        for task_id, record in await session.execute(query)
    }


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


class ExamSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much an exam examines. A scenario has up to three tasks of one kind: of one label or, without labels, of
    instructions that are alike, where `holdout_percent` tells kinds apart, and else of one instruction.
    """

    tasks: int = 0
    kinds: int = 0
    scenarios: int = 0
    checks: int = 0  #: tasks with a check
    logged: int = 0  #: tasks that were served
    checked_kinds: int = 0  #: with a task that has a check
    checked_scenarios: int = 0  #: of tasks with a check
    solved_kinds: int = 0  #: with a task that was solved and has its record
    solved_scenarios: int = 0  #: of such tasks
    learned: int = 0  #: tasks of kinds that active releases had learned from before they were held out

    @property
    def decides_on(self) -> list[Ground]:
        """On what the gate can try enough of it."""
        judged: dict[Ground, tuple[int, int]] = {
            "recorded": (self.solved_kinds, self.solved_scenarios),
            "staging": (self.checked_kinds, self.checked_scenarios),
        }
        needed = max(MIN_KINDS, MIN_JUDGED * self.kinds)
        return [ground for ground, (kinds, sets) in judged.items() if kinds >= needed and sets >= MIN_SCENARIOS]


async def of(session: AsyncSession, exam_ids: Collection[UUID]) -> dict[UUID, ExamSize]:
    exam, member, task, record = tables.Exam, tables.ExamTask, tables.Task, tables.Trajectory
    placed = tables.PlacedTask
    is_solved = and_(task.stop == Stop.COMPLETED, task.score >= GOOD, record.id.is_not(None))
    query = (
        select(
            member.exam_id,
            exam.project_id,
            member.instruction,
            func.coalesce(member.scenario, placed.kind).label("label"),
            member.task_id,
            member.check_code.is_not(None).label("has_check"),
            func.coalesce(is_solved, False).label("is_solved"),
        )
        .join(exam, exam.id == member.exam_id)
        .outerjoin(task, task.id == member.task_id)
        .outerjoin(record, record.task_id == member.task_id)
        .outerjoin(placed, placed.task_id == member.task_id)
        .where(in_array(member.exam_id, exam_ids))
    )
    by_exam: dict[UUID, list[_Member]] = defaultdict(list)
    for row in (await session.execute(query)).mappings():
        found = _Member(**row)
        by_exam[found.exam_id].append(found)
    projects = {each.project_id for members in by_exam.values() for each in members}
    learned = await releases.served_kinds(session, projects)
    return {each: _size(by_exam[each], learned) for each in exam_ids}


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """A task of an exam."""

    exam_id: UUID
    project_id: UUID
    instruction: str
    label: str | None  # its scenario, or the kind where it was placed
    task_id: UUID | None
    has_check: bool
    is_solved: bool

    @property
    def kind(self) -> str:
        return kind_of(self.instruction, self.label)


def _size(members: Collection[_Member], learned: dict[UUID, set[str]]) -> ExamSize:
    kinds = Counter(each.kind for each in members)
    checked = Counter(each.kind for each in members if each.has_check)
    solved = Counter(each.kind for each in members if each.is_solved)
    return ExamSize(
        tasks=len(members),
        kinds=len(kinds),
        scenarios=_scenarios(kinds),
        checks=checked.total(),
        logged=sum(each.task_id is not None for each in members),
        checked_kinds=len(checked),
        checked_scenarios=_scenarios(checked),
        solved_kinds=len(solved),
        solved_scenarios=_scenarios(solved),
        learned=sum(each.kind in learned[each.project_id] for each in members),
    )


def _scenarios(kinds: Mapping[str, int]) -> int:
    return sum(map(sets_of, kinds.values()))


class NewEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation's results, with the `settings` that repeat it."""

    model: str
    environment: str
    settings: dict[str, Json]
    figures: dict[str, Json]
    run_id: UUID | None = None
    release_id: UUID | None = None


async def add(session: AsyncSession, project_id: UUID, new: NewEvaluation) -> tables.Evaluation:
    row = tables.Evaluation(project_id=project_id, **msgspec.structs.asdict(new))
    session.add(row)
    await session.flush()
    return row


async def delete_of_run(session: AsyncSession, run_id: UUID) -> None:
    await session.execute(sql_delete(tables.Evaluation).where(tables.Evaluation.run_id == run_id))


async def of_release(session: AsyncSession, release_id: UUID) -> Sequence[tables.Evaluation]:
    """Oldest first."""
    evaluation = tables.Evaluation
    query = select(evaluation).where(evaluation.release_id == release_id).order_by(evaluation.created_at)
    return (await session.scalars(query)).all()


async def exams_of_release(session: AsyncSession, release_id: UUID) -> set[str]:
    """The names of the exams it was examined on."""
    name = tables.Evaluation.settings["exam", "name"].as_string()
    query = select(name).where(tables.Evaluation.release_id == release_id, name.is_not(None)).distinct()
    return set((await session.scalars(query)).all())


async def of_exam(
    session: AsyncSession, project_id: UUID, name: str
) -> Sequence[tuple[tables.Evaluation, int | None]]:
    """Those on any version of the exam, oldest first, each with the number of its release."""
    evaluation, release = tables.Evaluation, tables.Release
    query = (
        select(evaluation, release.number)
        .outerjoin(release, release.id == evaluation.release_id)
        .where(evaluation.project_id == project_id, evaluation.settings.contains({"exam": {"name": name}}))
        .order_by(evaluation.created_at)
    )
    return [(row[0], row[1]) for row in await session.execute(query)]
