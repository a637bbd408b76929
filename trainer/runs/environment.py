"""The environment of a run: one that its settings name, an exam of the project's own work, or its API's double.

An exam is made of what was recorded, where that still tells what the APIs of today answer. A gate that would
examine something else than the project does is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias
from uuid import UUID, uuid4

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.catalog import Catalog, with_builtins
from app.apis.presentation import shapes
from app.base.errors import InvalidError, NotFoundError
from app.base.run_settings import MIN_KINDS, MIN_SCENARIOS, RunKind, rollout_environment
from app.base.values import Call, Json, Task
from app.db import tables
from app.db.database import Sessions, reading
from app.projects import store as projects
from app.projects.kinds import OWN_WORK
from app.projects.settings import ProjectSettings
from app.releases import manifest
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import ExamSize, NewExamTask
from app.releases.tools import Catalogs, api_document, api_documents
from app.runs import experience
from trainer.environment import Environment, Split, open_environment
from trainer.exam.environment import ExamChoice, ExamEnvironment, ExamItem, Trials, exam_scenarios, solved_idly
from trainer.exam.trials import ProjectApis, open_trials
from trainer.experience import TaskKinds, read_held_out
from trainer.practice.api import PracticeChoice, open_practice
from trainer.run_job import Job, RunProgress

_TRAINING = 500  # kinds of tasks that rollouts draw from
_SHARE = 0.9  # of an API's operations that the environment must have by name
_WORLDS = 20  # that are opened to see its operations: the names may differ between them


class PastOperations:
    """The operations of earlier releases of a project, compared with those of its active one."""

    def __init__(self, sessions: Sessions, active: tables.Release) -> None:
        self._catalogs = Catalogs(sessions)
        self._active = active
        self._shapes: dict[str | None, Mapping[str, str]] = {}  # by the hash of the documents

    async def are_present(self, session: AsyncSession, release_id: UUID, calls: Sequence[Call]) -> bool:
        """Whether the operations that these calls of a task reached are what they were. Words for people do not
        count.
        """
        release = await releases.get(session, release_id)
        if release.tools == self._active.tools:
            return True
        then, now = await self._of(session, release), await self._of(session, self._active)
        reached = {call.api for call in calls if call.error is None or call.api in then}
        return all(api in now and then.get(api) == now[api] for api in reached)

    async def _of(self, session: AsyncSession, release: tables.Release) -> Mapping[str, str]:
        if release.tools not in self._shapes:
            catalog = await self._catalogs.of(await api_documents(session, release))
            self._shapes[release.tools] = await asyncio.to_thread(_shapes, catalog)
        return self._shapes[release.tools]


def _shapes(catalog: Catalog) -> dict[str, str]:
    """By "app.operation"."""
    apps = with_builtins(catalog).apps.values()
    return {f"{app.name}.{name}": shape for app in apps for name, shape in shapes(app).items()}


class RunEnvironment(msgspec.Struct, frozen=True):
    """An environment, and what a report says about it."""

    environment: Environment
    own: bool = False  # the project's own work, or an API of its own
    examined: Split = "validation"  # by the gate
    about: dict[str, Json] = {}
    training: dict[str, Json] = {}  # the tasks that rollouts draw from, and why others were dropped
    drawn_from: tuple[UUID, ...] = ()  # their ids, where they were served
    check: Callable[[], Awaitable["RunEnvironment"]] | None = None

    async def checked(self) -> "RunEnvironment":
        """Without the tasks that doing nothing solves, where a gate examines on it. On staging that takes long.

        Raises StagingError if the APIs cannot be reset.
        """
        return self if self.check is None else await self.check()


async def with_own_exam(job: Job, sessions: Sessions) -> Job:
    """The run, whose gate examines candidates on the project's own work if it names no environment.

    Also refreshes the exam of what the project holds out, before anything is read to learn from.
    """
    async with sessions() as session:
        percent = projects.settings_of(await projects.by_id(session, job.project_id)).holdout_percent
        logged = await exams.unlabelled(session, job.project_id) if percent else ()
    kinds = await asyncio.to_thread(TaskKinds, logged)  # of a long log it takes seconds
    async with sessions.begin() as session:
        await exams.place(session, kinds.new)
        exam = await exams.grow_holdout(session, job.project_id, kinds.of_task)
        size = (await exams.of(session, [exam.id]))[exam.id] if exam else ExamSize()
    named = job.settings.environment or job.settings.kind is RunKind.ROLLOUT
    if named or "recorded" not in size.decides_on:
        return job
    settings = msgspec.structs.replace(job.settings, environment=f"exam?name={OWN_WORK}")
    return msgspec.structs.replace(job, settings=settings)


async def too_little_own_work(job: Job, sessions: Sessions) -> str:
    """Why the project's own work is no exam."""
    async with sessions() as session:
        try:
            exam = await exams.get(session, job.project_id, OWN_WORK)
        except NotFoundError:
            return "it has no scored tasks that it holds out (holdout_percent)"
        size = (await exams.of(session, [exam.id]))[exam.id]
    held = "its own work that is held out"
    if size.solved_scenarios < MIN_SCENARIOS:
        return f"{held} are {size.solved_scenarios} solved scenarios of the {MIN_SCENARIOS} that are needed"
    if size.solved_kinds < MIN_KINDS:
        return f"{held} are solved tasks of {size.solved_kinds} kinds of the {MIN_KINDS} that are needed"
    return f"of {held}, tasks of only {size.solved_kinds} of the {size.kinds} kinds were solved"


@asynccontextmanager
async def open_run_environment(
    job: Job, sessions: Sessions, progress: RunProgress
) -> AsyncIterator[RunEnvironment | None]:
    """None for a run that names none. Raises InvalidError for an unknown one, for rollouts without one, and as
    `open_practice`.
    """
    if job.settings.kind is RunKind.ROLLOUT:
        rollout_environment(job.settings)
    elif not job.settings.environment:
        yield None
        return
    found = open_environment(job.settings.environment)
    if isinstance(found, PracticeChoice):
        yield RunEnvironment(await open_practice(job, sessions, found), own=True, examined="test")
        return
    if not isinstance(found, ExamChoice):
        yield RunEnvironment(found)
        return
    material = await _read(job, sessions, found)
    records = [item.record for item in (*material.exam, *material.training) if item.record is not None]
    async with open_trials(found.on, job, sessions, material.apis, records) as trials:
        opened = _opened(found, material, trials)
        if job.settings.kind is RunKind.ROLLOUT and not opened.drawn_from:
            counts = ", ".join(f"{count} {reason}" for reason, count in opened.training["dropped"].items())
            raise InvalidError(
                f"no tasks to roll out with on={found.on}, of {opened.training['tasks']} that are scored "
                f"({counts or 'none'}): have tasks of other kinds than those of the project's exams scored, with "
                "checks"
            )

        async def check() -> RunEnvironment:
            judged = [item for item in material.exam if trials.can_judge(item)]
            idle = await solved_idly(trials, judged, partial(progress.part, "exam checks"))
            return _opened(found, material, trials, idle)

        yield msgspec.structs.replace(opened, check=check if job.settings.gate_scenarios else None)


def _opened(
    choice: ExamChoice, material: "_Material", trials: Trials, idle: Collection[UUID] = ()
) -> RunEnvironment:
    """`idle` are tasks that are left out because doing nothing solves them."""
    judged = [item for item in material.exam if trials.can_judge(item)]
    examined = [item for item in judged if item.task.id not in idle]
    training = [item for item in material.training if trials.can_judge(item)]
    dropped = {"held_out": material.held_out, "not_judged": len(material.training) - len(training)}
    scenarios, kinds = len(exam_scenarios(material.exam)), {item.kind for item in material.exam}
    about: dict[str, Json] = {
        "name": choice.name,
        "version": material.version,
        "digest": material.digest,
        "learned": material.learned,
        "on": choice.on,
        "kinds": len(kinds),
        "kinds_left_out": len(kinds - {item.kind for item in examined}),
        "scenarios": scenarios,
        "scenarios_left_out": scenarios - len(exam_scenarios(examined)),
        "tasks_left_out": len(material.exam) - len(judged),
        "true_whatever_happens": len(idle),
    }
    return RunEnvironment(
        ExamEnvironment(examined, training, trials),
        own=True,
        about={"exam": about},
        training={
            "tasks": material.held_out + len(material.training),
            "drawn_from": len(training),
            "dropped": {name: count for name, count in dropped.items() if count},
        },
        drawn_from=tuple(item.task.id for item in training),
    )


class _Material(msgspec.Struct, frozen=True, kw_only=True):
    """What an exam is made of."""

    version: int
    digest: str
    learned: int  # tasks of it that served releases learned from
    exam: list[ExamItem]
    training: list[ExamItem]
    held_out: int  # scored tasks that are not for training
    apis: ProjectApis


async def _read(job: Job, sessions: Sessions, choice: ExamChoice) -> _Material:
    async with reading(sessions) as session:
        try:
            exam = await exams.get(session, job.project_id, choice.name, digest=choice.digest or None)
        except NotFoundError as error:
            which = f"{choice.name!r}" + (f" with the digest {choice.digest}" if choice.digest else "")
            raise InvalidError(f"the project {job.project} has no exam {which}: {_how(choice)}") from error
        rows = await exams.tasks_of(session, exam.id)
        examined = [
            NewExamTask(**{name: getattr(row, name) for name in NewExamTask.__struct_fields__}) for row in rows
        ]
        held_out = await read_held_out(session, job.project_id, job.settings.environment)
        logged = await exams.from_log(session, job.project_id, kinds=_TRAINING)
        training = [each for each in logged if _task(each, job.project) not in held_out]
        served = await manifest.begin_serving(session, job.project_id, None, None)
        apis = ProjectApis(served.documents, msgspec.convert(served.settings, ProjectSettings))
        size = (await exams.of(session, [exam.id]))[exam.id]
        past = PastOperations(sessions, await releases.get(session, served.release))
        items = await _items(session, [*examined, *training], job.project, past)
    return _Material(
        version=exam.version,
        digest=exam.digest,
        learned=size.learned,
        exam=items[: len(examined)],
        training=items[len(examined) :],
        held_out=len(logged) - len(training),
        apis=apis,
    )


def _how(choice: ExamChoice) -> str:
    if choice.digest:
        return f"GET /v1/exams/{choice.name}?version=NUMBER shows the digest of a version"
    if choice.name == OWN_WORK:
        return "set holdout_percent in its settings, and have tasks scored"
    return "make it with POST /v1/exams"


async def _items(
    session: AsyncSession, tasks: Sequence[NewExamTask], project: str, past: PastOperations
) -> list[ExamItem]:
    """With what is known of those that were served. A record that was deleted is missing, and so is one of
    operations that have changed since.
    """
    ids = [task.task_id for task in tasks if task.task_id is not None]
    ended = {each.id: each for each in await experience.ended(session, ids)}
    placed = await exams.kinds_of(session, ids)
    records = {}
    async for record in experience.trajectories(session, ids):
        release_id = ended[record.task.id].release_id
        if release_id is None or await past.are_present(session, release_id, record.calls):
            records[record.task.id] = record
    return [
        ExamItem(
            task=_task(task, project),
            placed=placed.get(task.task_id) if task.task_id else None,
            check=task.check_code,
            record=records.get(task.task_id) if task.task_id else None,
            score=ended[task.task_id].score if task.task_id in ended else None,
            now=(ended[task.task_id].started_at if task.task_id in ended else None) or datetime.now(UTC),
        )
        for task in tasks
    ]


def _task(task: NewExamTask, project: str) -> Task:
    return Task(task.task_id or uuid4(), task.instruction, project, task.scenario, task.variables)


_Names: TypeAlias = Mapping[str, Collection[Collection[str]]]
"""Of each API, for each operation the names that it is known by."""


async def check_coverage(job: Job, sessions: Sessions, found: RunEnvironment | None) -> None:
    """Raises InvalidError for a run whose gate would decide in a world without the project's APIs.

    Success there says nothing about the project's work. A project without APIs is not examined on anything else.
    An API of the same name is another one if the environment lacks more than a tenth of its operations.
    """
    if found is None or found.own or not job.settings.gate_scenarios or job.settings.foreign_exam:
        return
    async with sessions() as session:
        documents = [await api_document(session, row) for row in await apis.of_project(session, job.project_id)]
    own = {
        app.name: [{each.name, *each.former_names} for each in app.operations.values()]
        for app in (await Catalogs(sessions).of(documents)).apps.values()
    }
    if lacking := await _lacking(found.environment, own):
        advice = (
            "name another environment, or set foreign_exam=true to examine releases there all the same"
            if job.settings.kind is RunKind.EXAM
            else "set gate_scenarios=0 and try the candidate as a canary (gate=canary does by itself), or "
            "foreign_exam=true to let the gate decide all the same"
        )
        raise InvalidError(
            f"the environment {job.settings.environment} has {', and '.join(lacking)}, so its evaluation says "
            f"nothing about what the project {job.project} does there: {advice}"
        )


async def _lacking(environment: Environment, own: _Names) -> list[str]:
    """What the environment has too little of, in words. Opens worlds until there is nothing."""
    there: dict[str, set[str]] = {}
    lacking = list(_too_few(own, there))
    for scenario in environment.scenarios("validation", _WORLDS, seed=0) if lacking else ():
        async with environment.open(scenario, scenario.tasks[0]) as world:
            for app in world.catalog.apps.values():
                there.setdefault(app.name, set()).update(app.operations)
        if not (lacking := list(_too_few(own, there))):
            break
    return lacking


def _too_few(own: _Names, there: Mapping[str, Collection[str]]) -> Iterator[str]:
    if absent := sorted(set(own) - set(there)):
        yield f"no {', '.join(absent)}"
    for app, operations in own.items():
        if app in there:
            known = sum(any(name in there[app] for name in names) for names in operations)
            if known < _SHARE * len(operations):
                yield f"only {known} of the {len(operations)} operations of {app}"
