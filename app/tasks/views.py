"""A task in responses."""

from datetime import datetime
from typing import Self
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import trials
from app.apis.approvals import store as approvals
from app.apis.credentials.credential import mask_call
from app.base.values import Json, ScoreSource, SkillRun, Stop, what_to_do
from app.db import doubts, quotas, results, tables, task_secrets, verifications
from app.projects import store as projects
from app.projects.settings import Limits
from app.releases import store as releases
from app.skills import offers
from app.skills import store as skills
from app.skills.search import SkillSelectionRecord
from app.web.fields import columns, console_path


class TaskLinks(msgspec.Struct, frozen=True):
    """Related resources."""

    self: str
    events: str
    trajectory: str
    console: str

    @classmethod
    def of(cls, task_id: UUID) -> "TaskLinks":
        own = f"/v1/tasks/{task_id}"
        return cls(own, f"{own}/events", f"{own}/trajectory", console_path("tasks", task_id))


class Accepted(msgspec.Struct, frozen=True):
    """The task is stored and queued."""

    id: UUID
    state: tables.TaskState
    links: TaskLinks

    @classmethod
    def of(cls, task: tables.Task) -> Self:
        return cls(task.id, task.state, TaskLinks.of(task.id))


class AcceptedMany(msgspec.Struct, frozen=True):
    """In the order of the request."""

    tasks: list[Accepted]


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A task in a list."""

    id: UUID
    project: str
    instruction: str
    conversation: str  #: before the instruction
    scenario: str | None
    principal: str
    priority: int
    state: tables.TaskState
    stop: Stop | None = msgspec.field(name="stop_reason")  #: why the rollout ended
    answer: Json
    failure: str | None  #: why it could not be executed, or what went wrong in its check or judge
    score: float | None  #: from 0 to 1: solved from 0.5 on, else failed; null: unscored
    score_source: ScoreSource | None
    turns: int
    generated_tokens: int
    calls: int
    prompt_tokens: int  #: of all its prompts together
    cost: float | None  #: of its hosted model, in the unit of the prices; null where these are unknown
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    links: TaskLinks

    @classmethod
    def of(cls, task: tables.Task, project: str) -> "TaskSummary":
        links = TaskLinks.of(task.id)
        return TaskSummary(project=project, links=links, **columns(task, TaskSummary, "project", "links"))


class TaskPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    tasks: list[TaskSummary]
    next_cursor: str | None


class SkillRef(msgspec.Struct, frozen=True, kw_only=True):
    """A skill, and the task that wrote it. See the manual for the states in which it is offered to new tasks."""

    id: UUID
    name: str
    version: int
    state: tables.SkillState
    task_id: UUID | None

    @classmethod
    def of(cls, skill: tables.Skill) -> Self:
        return cls(**columns(skill, cls))


class TaskSkills(msgspec.Struct, frozen=True):
    """`offered` were shown to the agent; `used` are those that it called and that returned. `withheld` would have
    been offered, had the task not been chosen to do without. `selection` says why; it is null where no skill was
    found, and before the task has begun.
    """

    offered: list[SkillRef]
    withheld: list[SkillRef]
    used: list[SkillRef]
    written: list[SkillRef]
    selection: SkillSelectionRecord | None


class ServedBy(msgspec.Struct, frozen=True):
    """The release that the task was pinned to when it started."""

    number: int
    model: str


class WantedApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The API call that a waiting task asks to make."""

    id: UUID
    api: str = msgspec.field(name="operation")
    created_at: datetime = msgspec.field(name="requested_at")
    expires_at: datetime

    @classmethod
    def of(cls, row: tables.Approval) -> Self:
        return cls(**columns(row, cls))


class CallInDoubt(msgspec.Struct, frozen=True, kw_only=True):
    """The call of which it is not known whether it arrived. `arguments` are without passwords and tokens."""

    operation: str
    arguments: dict[str, Json]
    turn: int


class VerificationView(msgspec.Struct, frozen=True, kw_only=True):
    """The question to the project's verifier: about its answer, and the problem of its latest attempt."""

    state: tables.VerificationState
    problem: str | None
    reason: str | None
    attempt: int = msgspec.field(name="attempts")
    finished_at: datetime | None

    @classmethod
    def of(cls, row: tables.Verification) -> Self:
        return cls(**columns(row, cls))


class TaskView(TaskSummary, frozen=True, kw_only=True):
    """Everything about one task except its turns, which are in /trajectory."""

    skills: TaskSkills
    release: ServedBy | None
    approval: WantedApproval | None  #: that it waits for
    in_doubt: CallInDoubt | None = None  #: for which it ended, and with whose settlement it goes on
    rerun_of: UUID | None  #: the task that it repeats
    repairs: UUID | None  #: the skill that it is to write anew for a changed API; it only reads then
    reads_only: bool  #: it may change nothing, as when an expert does a task again
    waits_for: str | None  #: the limit of its project that keeps it from starting
    variables: dict[str, Json]
    use_skills: bool
    exploration: tables.Exploration | None
    """Whether it was sampled at temperature 1 for learning: with all calls (`writes`), or without those that are
    not open to exploration (`reads`), before one of which it began again without (`stopped`). `no`: it was not to.
    null: it was not chosen, or has not begun."""
    skill_run: SkillRun | None  #: the call that it makes, instead of having the agent work
    check: str | None
    overruled_score: float | None  #: of another source, which counts for less
    lowest_score: float | None  #: of all that sources and people gave; null, as the highest: at most one was given
    highest_score: float | None
    verification: VerificationView | None
    what_to_do: str | None = None  #: by a person, about how it ended
    cancel_requested: bool
    attempt: int
    prompt_hash: str | None  #: of the prompt that it began under
    seconds: float | None  #: from the first start to the end
    remarks: list[str] = []  #: about the deployment, such as a model that was not made for the project's APIs

    @classmethod
    def full(
        cls,
        task: tables.Task,
        project: str,
        skills: TaskSkills,
        release: tables.Release | None,
        approval: tables.Approval | None,
        waits_for: str | None,
        verification: tables.Verification | None,
    ) -> "TaskView":
        started, finished = task.started_at, task.finished_at
        return TaskView(
            project=project,
            skills=skills,
            release=ServedBy(release.number, release.policy) if release else None,
            approval=WantedApproval.of(approval) if approval else None,
            rerun_of=task.rerun_of,
            repairs=task.repairs,
            reads_only=task.reads_only,
            waits_for=waits_for,
            variables=task.variables,
            use_skills=task.use_skills,
            exploration=task.exploration,
            skill_run=None if task.skill_run is None else msgspec.convert(task.skill_run, SkillRun),
            check=task.check_code,
            overruled_score=task.overruled_score,
            lowest_score=task.lowest_score,
            highest_score=task.highest_score,
            verification=VerificationView.of(verification) if verification else None,
            cancel_requested=task.cancel_requested,
            attempt=task.attempt,
            prompt_hash=task.prompt,
            seconds=(finished - started).total_seconds() if started and finished else None,
            links=TaskLinks.of(task.id),
            **columns(task, TaskSummary, "project", "links"),
        )


async def view_task(session: AsyncSession, task: tables.Task, limits: Limits) -> TaskView:
    """`limits` are the server's."""
    project = await projects.by_id(session, task.project_id)
    release = await releases.get(session, task.release_id) if task.release_id else None
    approval = limit = None
    if task.state is tables.TaskState.WAITING:
        approval = await approvals.waiting(session, task.id)
    if task.state is tables.TaskState.ACCEPTED:
        limit = await quotas.exhausted(session, project, limits)
    asked = await verifications.of_task(session, task.id)
    used = await skills_of(session, task.id)
    unusable = await trials.unusable(session, task.project_id, task.release_id) if task.stop else ()
    view = TaskView.full(task, project.name, used, release, approval, limit, asked)
    remarks = [each["text"] for each in await results.of_kind(session, task.id, "remark")]
    return msgspec.structs.replace(
        view,
        what_to_do=what_to_do(task.stop, task.score, unusable),
        remarks=remarks,
        in_doubt=await _in_doubt(session, task),
    )


async def _in_doubt(session: AsyncSession, task: tables.Task) -> CallInDoubt | None:
    call = await doubts.of_task(session, task)
    if call is None:
        return None
    secrets = await task_secrets.of_task(session, task)
    arguments: dict[str, Json] = secrets.mask_value(mask_call(call).arguments)
    return CallInDoubt(operation=call.api, arguments=arguments, turn=call.turn)


async def skills_of(session: AsyncSession, task_id: UUID) -> TaskSkills:
    edges = await offers.to_task(session, task_id)
    selection = await offers.selection_of(session, task_id)
    return TaskSkills(
        offered=[SkillRef.of(skill) for _, skill in edges],
        withheld=[SkillRef.of(skill) for skill in await offers.withheld_from(session, task_id)],
        used=[SkillRef.of(skill) for offer, skill in edges if offer.returned],
        written=[SkillRef.of(skill) for skill in await skills.made_by(session, task_id)],
        selection=None if selection is None else msgspec.convert(selection, SkillSelectionRecord),
    )
