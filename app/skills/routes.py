"""Routes for skills: listed, found, compared, moved; run as a task; exported and imported as folders."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Annotated, Any, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import Stream
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.catalog import Catalog
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import read_api
from app.apis.presentation import outline
from app.base.errors import ConflictError, InvalidError
from app.base.fields import columns
from app.base.values import Json, SkillRun
from app.db import tables
from app.db.database import Sessions
from app.db.results import TaskSums
from app.db.tables import SkillState
from app.projects.authorization import find_project, project_filter, project_names
from app.projects.settings import Limits
from app.releases import statistics
from app.releases import store as releases
from app.releases.statistics import Interval, difference
from app.skills import moves, offers, repairs
from app.skills import store as skills
from app.skills.admission import admit_import, is_offered, judge, stored_manifest
from app.skills.folders import ReadSkill, RefusedFolderError, SkillFolder, check_all, read_all, write_folder
from app.skills.library import SkillSearch
from app.skills.offers import SkillStats, SkillUse
from app.skills.requests import (
    ImportedFolder,
    ImportReport,
    ImportRequest,
    SkillMatch,
    SkillPage,
    SkillRepairView,
    SkillStanding,
    SkillSummary,
    SkillView,
)
from app.skills.value import ComparedTask, compared_tasks
from app.tasks import store as tasks
from app.tasks.requests import Principal, Priority, Variables
from app.tasks.submission import digest_about
from app.tasks.views import Accepted
from app.web.access import Access, Caller, Db
from app.web.fields import TIME, ConsoleLinks, Cursor, IdempotencyKey, Limit, ProjectName, in_utc
from app.web.problem import CHANGE, READ, problems

_ALPHA = 0.05  # of a difference at any time
_SCENARIOS = 100  # of which what skills are worth is told apart
_MAX_BYTES = 100_000  # of all arguments, as JSON
_PAGE = 100  # skills of an export that are read at once
_OFFERED_TO_ALL = (SkillState.ACTIVE, SkillState.PROBATION)
_MEDIA_TYPE = "text/x-ndjson"
_STREAM = ResponseSpec(
    Any,
    description="One JSON object per line: `id`, `name`, `version` and `state` of a skill, and its `folder`: the "
    "name, and the text of each of its `files` by path",
    media_type=_MEDIA_TYPE,
    generate_examples=False,
)

Query = Annotated[
    str, QueryParameter(min_length=1, max_length=20_000, description="an instruction in natural language")
]
Api = Annotated[str | None, QueryParameter(description="only skills that call this `app` or `app.operation`")]
Kept = Annotated[
    UUID | None, QueryParameter(description="a skill that does the same, which tasks are offered from now on")
]
Arguments = Annotated[
    dict[str, Json],
    msgspec.Meta(description="the arguments of the skill, by parameter", examples=[{"who": "iris"}]),
]
Move = Callable[[AsyncSession, UUID, str], Awaitable[tables.Skill]]


class ScoredTasks(msgspec.Struct, frozen=True):
    """A number of scored tasks, and their mean score; null without any."""

    tasks: int
    score: float | None

    @classmethod
    def of(cls, scores: Sequence[float]) -> Self:
        return cls(len(scores), fmean(scores) if scores else None)


class SkillEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Mean score, turns and generated tokens of a task with skills minus those of one without, each with the 95 %
    interval for a person who looks once. null until there are tasks of both.
    """

    score: Interval | None
    turns: Interval | None
    tokens: Interval | None

    @classmethod
    def of(cls, offered: TaskSums, withheld: TaskSums) -> Self:
        return cls(
            score=statistics.one_look_difference(offered.score, withheld.score, most=1.0),
            turns=statistics.one_look_difference(offered.turns, withheld.turns),
            tokens=statistics.one_look_difference(offered.tokens, withheld.tokens),
        )


class ScenarioValue(msgspec.Struct, frozen=True, kw_only=True):
    """`difference` is the mean score with skills minus that without, with a 95 % interval that holds at any time.

    null until there are scores of both. `one_look` has narrower intervals, which hold for one look.
    """

    scenario: str | None
    offered: ScoredTasks
    withheld: ScoredTasks
    difference: Interval | None
    one_look: SkillEffect

    @classmethod
    def of(cls, scenario: str | None, tasks: Sequence[ComparedTask]) -> Self:
        return cls(scenario=scenario, **_compared(tasks))


class SkillValue(msgspec.Struct, frozen=True, kw_only=True):
    """Of all scenarios, then of each: those with most tasks, at most 100.

    Which tasks do without is decided by a hash, so a difference is the effect of the skills. Each interval holds
    by itself: of twenty scenarios, one may be wrong.
    """

    offered: ScoredTasks
    withheld: ScoredTasks
    difference: Interval | None
    one_look: SkillEffect
    scenarios: list[ScenarioValue]

    @classmethod
    def of(cls, tasks: Sequence[ComparedTask]) -> Self:
        by_scenario: dict[str | None, list[ComparedTask]] = defaultdict(list)
        for task in tasks:
            by_scenario[task.scenario].append(task)
        largest = sorted(by_scenario.items(), key=lambda item: -len(item[1]))[:_SCENARIOS]
        scenarios = [ScenarioValue.of(scenario, members) for scenario, members in largest]
        return cls(scenarios=scenarios, **_compared(tasks))


def _compared(tasks: Sequence[ComparedTask]) -> dict[str, Any]:
    arms = [[task for task in tasks if task.withheld is withheld] for withheld in (False, True)]
    offered, withheld = ([task.score for task in arm] for arm in arms)
    return {
        "offered": ScoredTasks.of(offered),
        "withheld": ScoredTasks.of(withheld),
        "difference": difference(offered, withheld, _ALPHA),
        "one_look": SkillEffect.of(*map(_sums, arms)),
    }


def _sums(tasks: Sequence[ComparedTask]) -> TaskSums:
    return TaskSums(
        score=statistics.sums_of(task.score for task in tasks),
        turns=statistics.sums_of(task.turns for task in tasks if task.turns is not None),
        tokens=statistics.sums_of(task.tokens for task in tasks if task.tokens is not None),
    )


class SkillController(Controller):
    path = "/skills"
    tags = ("Skills",)
    opt = {"scope": "skills"}  # noqa: RUF012

    @get(summary="List skills", responses=READ)
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[tables.SkillState | None, QueryParameter(name="state")] = None,
        principal: FromQuery[str | None] = None,
        name: FromQuery[str | None] = None,
        scenario: FromQuery[str | None] = None,
        api: Api = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> SkillPage:
        """Newest first, in any state unless one is given."""
        only = skills.SkillFilter(
            project_id=await project_filter(session, access, project),
            state=in_state,
            principal=principal,
            name=name,
            scenario=scenario,
            api=api,
        )
        page = await skills.page(session, only, cursor=cursor, limit=limit)
        names = await project_names(session)
        return SkillPage([SkillSummary.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @get("/search", summary="Find skills for an instruction", responses=READ)
    async def search(  # noqa: PLR0913 - each is a query parameter
        self,
        q: Query,
        session: Db,
        access: Caller,
        library: NamedDependency[SkillSearch],
        project: ProjectName = None,
        scenario: FromQuery[str | None] = None,
        principal: FromQuery[str] = "",
        limit: Annotated[int, QueryParameter(ge=1, le=50)] = 10,
    ) -> list[SkillMatch]:
        """The skills that a task of the principal with this instruction would be offered, best first.

        Empty if none fits.
        """
        owner = await find_project(session, access, project)
        return await search_skills(session, library, owner.id, q, scenario, principal, limit)

    @get("/value", summary="Show what skills are worth", responses=READ)
    async def value(
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        skill: Annotated[UUID | None, QueryParameter(description="only tasks that this skill fitted")] = None,
        scenario: FromQuery[str | None] = None,
        since: Annotated[
            str | None, QueryParameter(description="ended at this time or later", schema_extra=TIME)
        ] = None,
    ) -> SkillValue:
        """Compares the scores of tasks that were offered skills with those of tasks from which they were withheld.

        `SAGE_SKILLS_WITHHELD` sets the share of the latter. The latest 20,000 scored tasks count, but not
        those that only a judge scored.
        """
        owner = await find_project(session, access, project)
        tasks = await compared_tasks(session, owner.id, skill_id=skill, scenario=scenario, since=in_utc(since))
        return SkillValue.of(tasks)

    @get("/{skill_id:uuid}", summary="Show a skill", responses=READ)
    async def show(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> SkillView:
        """Its source and manifest, the task that wrote it, its use, and the evidence for its state."""
        return await view_skill(session, await _find(session, access, skill_id))

    @get("/{skill_id:uuid}/versions", summary="List the versions of a skill", responses=READ)
    async def versions(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> list[SkillSummary]:
        """Newest first."""
        skill = await _find(session, access, skill_id)
        names = await project_names(session)
        rows = await skills.versions(session, skill.project_id, skill.name)
        return [SkillSummary.of(row, names[row.project_id]) for row in rows]

    @get("/{skill_id:uuid}/uses", summary="List the tasks a skill was offered to", responses=READ)
    async def uses(
        self, skill_id: FromPath[UUID], session: Db, access: Caller, limit: Limit = 50
    ) -> list[SkillUse]:
        """Newest first, each with the task that wrote the skill and the outcome of the one it was offered to."""
        skill = await _find(session, access, skill_id)
        return await offers.uses_of(session, skill.id, limit)

    @post("/{skill_id:uuid}/approve", status_code=200, summary="Approve a skill", responses=CHANGE)
    async def approve(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> SkillView:
        """Moves it from quarantine to probation, or from probation to active, whatever its evidence."""
        return await _move(session, access, skill_id, moves.approve)

    @post("/{skill_id:uuid}/retire", status_code=200, summary="Retire a skill", responses=CHANGE)
    async def retire(
        self, skill_id: FromPath[UUID], session: Db, access: Caller, in_favor_of: Kept = None
    ) -> SkillView:
        """No version of its name is offered again, even if the agent rewrites it, until a version is restored."""
        move = moves.retire if in_favor_of is None else partial(moves.merge, into=in_favor_of)
        return await _move(session, access, skill_id, move)

    @post("/{skill_id:uuid}/restore", status_code=200, summary="Restore a skill", responses=CHANGE)
    async def restore(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> SkillView:
        """This version has the state again that it had, in place of every other version.

        One that was held still waits for approval, and replaces none.
        """
        return await _move(session, access, skill_id, moves.restore)

    @delete("/{skill_id:uuid}", summary="Delete a skill", responses=CHANGE)
    async def remove(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> None:
        """Deletes its source irrevocably; references to it keep its name. The agent may write it again."""
        await _move(session, access, skill_id, moves.delete)


async def view_skill(session: AsyncSession, skill: tables.Skill) -> SkillView:
    names = await project_names(session)
    evidence, found = await judge(session, skill)
    final = found.state is skill.state
    return SkillView(
        project=names[skill.project_id],
        source=skill.source,
        manifest=stored_manifest(skill),
        standing=SkillStanding(
            evidence=evidence,
            next_state=None if final else found.state,
            missing=[] if final else list(found.missing),
        ),
        release_id=skill.release_id,
        embedder=skill.embedder,
        stats=(await offers.stats(session, [skill.id]))[skill.id],
        repairs=[SkillRepairView.of(*each) for each in await repairs.of_skill(session, skill.id)],
        links=ConsoleLinks.of("skills", skill.id),
        **columns(skill, SkillSummary, "project", "links"),
    )


async def search_skills(
    session: AsyncSession,
    library: SkillSearch,
    project_id: UUID,
    instruction: str,
    scenario: str | None,
    principal: str,
    limit: int,
) -> list[SkillMatch]:
    """Best first. Ends the transaction: the search may wait for the embedder."""
    await session.commit()
    found = await library.find(project_id, instruction, scenario, limit, principal=principal)
    return [SkillMatch.of(offer) for offer in found]


async def _find(session: AsyncSession, access: Access, skill_id: UUID) -> tables.Skill:
    return await skills.get(session, skill_id, access.project_id)


async def _move(session: AsyncSession, access: Access, skill_id: UUID, move: Move) -> SkillView:
    skill = await _find(session, access, skill_id)
    await move(session, skill.id, access.actor)
    await session.commit()
    return await view_skill(session, await _find(session, access, skill_id))


class SkillRunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a skill is run. `principal`, `priority` and `variables` are those of a task."""

    arguments: Arguments = {}
    principal: Principal = ""
    priority: Priority = 0
    variables: Variables = {}


class SkillRunController(Controller):
    path = "/skills/{skill_id:uuid}/run"
    tags = ("Skills",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(status_code=202, summary="Run a skill", responses=problems(400, 401, 403, 404, 409, 429))
    async def run(
        self,
        skill_id: FromPath[UUID],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
        data: JSONBody[SkillRunRequest | None] = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Accepted:
        """A task that calls the skill, without a model; its answer is what the skill returns. The skill may do
        what its manifest permits, as when an agent calls it. The task fails if it raises. 409 for a skill, or a
        version of it, that tasks of the principal are not offered.
        """
        task = await run_skill(session, access, skill_id, data or SkillRunRequest(), idempotency_key, limits)
        await session.commit()
        return Accepted.of(task)


async def run_skill(
    session: AsyncSession, access: Access, skill_id: UUID, data: SkillRunRequest, key: str | None, limits: Limits
) -> tables.Task:
    """Submit the task; the caller commits. Raises InvalidError, ConflictError, NotFoundError, LimitError."""
    skill = await skills.get(session, skill_id, access.project_id)
    if len(msgspec.json.encode(data.arguments)) > _MAX_BYTES:
        raise InvalidError(f"arguments: together more than {_MAX_BYTES:,} bytes as JSON")
    if not await is_offered(session, skill, data.principal):
        raise ConflictError(
            f"version {skill.version} of {skill.name} is {skill.state}{' and held' if skill.held else ''}: it is "
            f"not offered to tasks of the principal {data.principal!r}; GET /v1/skills/search finds what is"
        )
    run = SkillRun(skill_id=skill.id, arguments=data.arguments)
    new = tasks.NewTask(
        instruction=f"Run the skill {skill.name}.",
        key_id=access.key_id,
        principal=data.principal,
        priority=data.priority,
        variables=data.variables,
        skill_run=msgspec.to_builtins(run),
        pinned=True,
        idempotency_key=key,
        request_digest=digest_about(skill_id, data) if key else None,
    )
    return await tasks.submit(session, skill.project_id, new, limits)


class ExportedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an export."""

    id: UUID
    name: str
    version: int
    state: SkillState
    folder: SkillFolder


class SkillFolderController(Controller):
    path = "/skills"
    tags = ("Skills",)
    opt = {"scope": "skills"}  # noqa: RUF012

    @get(
        "/export",
        summary="Export skills as Agent Skills",
        media_type=_MEDIA_TYPE,
        responses={200: _STREAM, **READ},
    )
    async def export_folders(
        self,
        access: Caller,
        sessions: NamedDependency[Sessions],
        project: ProjectName = None,
        in_state: Annotated[
            SkillState | None, QueryParameter(name="state", description="default: those that are offered to all")
        ] = None,
        name: FromQuery[str | None] = None,
        scenario: FromQuery[str | None] = None,
    ) -> Stream:
        """Of each name one version: the active one, else the newest. A folder has a `SKILL.md` and the Python in
        `scripts/`; deleted skills have none.
        """
        async with sessions() as session:
            owner = await find_project(session, access, project)
        states = _OFFERED_TO_ALL if in_state is None else (in_state,)
        only = [
            skills.SkillFilter(project_id=owner.id, state=state, name=name, scenario=scenario) for state in states
        ]
        return Stream(_lines(sessions, only), media_type=_MEDIA_TYPE)

    @post("/import", status_code=200, summary="Import Agent Skills", responses=problems(400, 401, 403, 404, 413))
    async def import_folders(
        self,
        data: JSONBody[ImportRequest],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> ImportReport:
        """Each folder is checked as a function that the agent wrote, and refused on its own. What passes is
        quarantined and held: no task is offered it before it is approved.
        """
        project = await find_project(session, access, data.project)
        project_id = project.id
        await session.commit()
        read = await asyncio.to_thread(read_all, data.folders)
        drafts = [each.draft for each in read if isinstance(each, ReadSkill)]
        named = {api.partition(".")[0] for draft in drafts for api in draft.apis}
        catalog = await _catalog(session, document_reader, project_id, named)
        checked = await asyncio.to_thread(check_all, read, catalog)
        report: list[ImportedFolder] = []
        for folder, new in zip(data.folders, checked, strict=True):
            if isinstance(new, RefusedFolderError):
                report.append(ImportedFolder.refused(folder.name, new))
            else:
                stored = await admit_import(session, project_id, new, access.actor)
                report.append(ImportedFolder.stored(folder.name, *stored))
        await session.commit()
        return ImportReport.of(report)


async def _catalog(session: AsyncSession, reader: DocumentReader, project_id: UUID, named: set[str]) -> Catalog:
    """The outlines of these APIs, of those that exist. Ends the transaction."""
    rows = [row for row in await apis.of_project(session, project_id) if row.name in named]
    await session.commit()
    return Catalog(
        {row.name: outline(row.name, (await read_api(reader, session, row, row.bind)).traits) for row in rows}
    )


async def _lines(sessions: Sessions, filters: Sequence[skills.SkillFilter]) -> AsyncIterator[bytes]:
    seen: set[str] = set()
    for only in filters:
        cursor: str | None = None
        while True:
            async with sessions() as session:
                page = await skills.page(session, only, cursor=cursor, limit=_PAGE)
                stats = await offers.stats(session, [each.id for each in page.items])
                ids = {each.release_id for each in page.items if each.release_id}
                numbers = await releases.numbers(session, ids)
            new = [each for each in page.items if each.source and each.name not in seen]
            newest = list({each.name: each for each in new[::-1]}.values())[::-1]
            seen |= {each.name for each in newest}
            lines = (
                _line(each, stats[each.id], numbers[each.release_id] if each.release_id else None)
                for each in newest
            )
            yield await asyncio.to_thread(b"".join, lines)
            cursor = page.cursor
            if cursor is None:
                break


def _line(skill: tables.Skill, stats: SkillStats, release: int | None) -> bytes:
    folder = write_folder(skill, stored_manifest(skill), stats, release)
    line = ExportedSkill(id=skill.id, name=skill.name, version=skill.version, state=skill.state, folder=folder)
    return msgspec.json.encode(line) + b"\n"
