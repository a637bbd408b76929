"""A task in responses: its state and answer, its skills and the release that served it, its full record turn by
turn, and how it went when another release did it again on recorded calls.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import trials
from app.apis.approvals import store as approvals
from app.apis.credentials.credential import mask_call
from app.base.errors import ConflictError, NotFoundError
from app.base.fields import MOST, columns
from app.base.values import (
    Call,
    CountedTokens,
    Json,
    Offer,
    Policy,
    ScoreSource,
    SkillCall,
    SkillRun,
    Stop,
    Trajectory,
    Turn,
    Use,
    what_to_do,
)
from app.db import results, tables
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.projects.settings import Limits
from app.releases import store as releases
from app.releases import trials_store
from app.skills import offers
from app.skills import store as skills
from app.skills.search import SkillSelectionRecord
from app.tasks import masking, queue, verification
from app.tasks import store as tasks
from app.web.access import Caller, Db
from app.web.fields import ConsoleLinks, console_path
from app.web.problem import CHANGE, READ


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
    check_code: str | None = msgspec.field(name="check")
    overruled_score: float | None  #: of another source, which counts for less
    lowest_score: float | None  #: of all that sources and people gave; null, as the highest: at most one was given
    highest_score: float | None
    verification: VerificationView | None
    what_to_do: str | None = None  #: by a person, about how it ended
    cancel_requested: bool
    attempt: int
    prompt: str | None = msgspec.field(name="prompt_hash")  #: of the prompt that it began under
    seconds: float | None  #: from the first start to the end
    remarks: list[str] = []  #: about the deployment, such as a model that was not made for the project's APIs


async def view_task(session: AsyncSession, task: tables.Task, limits: Limits) -> TaskView:
    """`limits` are the server's."""
    project = await projects.by_id(session, task.project_id)
    release = await releases.get(session, task.release_id) if task.release_id else None
    approval = limit = None
    if task.state is tables.TaskState.WAITING:
        approval = await approvals.waiting(session, task.id)
    if task.state is tables.TaskState.ACCEPTED:
        limit = await queue.exhausted(session, project, limits)
    asked = await verification.of_task(session, task.id)
    used = await skills_of(session, task.id)
    unusable = await trials.unusable(session, task.project_id, task.release_id) if task.stop else ()
    remarks = [each["text"] for each in await results.of_kind(session, task.id, "remark")]
    started, finished = task.started_at, task.finished_at
    given = ("skills", "release", "approval", "in_doubt", "waits_for", "skill_run", "verification", "what_to_do")
    return TaskView(
        project=project.name,
        skills=used,
        release=ServedBy(release.number, release.policy) if release else None,
        approval=WantedApproval.of(approval) if approval else None,
        in_doubt=await _in_doubt(session, task),
        waits_for=limit,
        skill_run=None if task.skill_run is None else msgspec.convert(task.skill_run, SkillRun),
        verification=VerificationView.of(asked) if asked else None,
        what_to_do=what_to_do(task.stop, task.score, unusable),
        seconds=(finished - started).total_seconds() if started and finished else None,
        remarks=remarks,
        links=TaskLinks.of(task.id),
        **columns(task, TaskView, "project", *given, "seconds", "remarks", "links"),
    )


async def _in_doubt(session: AsyncSession, task: tables.Task) -> CallInDoubt | None:
    call = await tasks.call_in_doubt(session, task)
    if call is None:
        return None
    secrets = await masking.of_task(session, task)
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


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. Tokens `sampled_span[0]` to `sampled_span[1]` of the sequence were sampled, all others given.

    `prompt` is the text of the prompt that is new in this turn, with the model's markers: the whole prompt is that
    of all turns up to this one, each with its `text`, since the last that does not extend. Null where the tokens
    are gone, or are those of another model than the one that is served now.
    """

    prompt: str | UnsetType | None = UNSET
    text: str
    finish: str = msgspec.field(name="finish_reason")
    observation: str
    outcome: str
    calls: tuple[Call, ...]
    uses: tuple[Use, ...]
    skill_calls: tuple[SkillCall, ...]
    engine_seconds: float
    sandbox_seconds: float
    extends: bool  #: False: the prompt was rewritten, and the sequence restarts with this turn
    sampled_span: tuple[int, int]
    context_ids: tuple[int, ...] | UnsetType = UNSET  #: new prompt tokens
    sampled_ids: tuple[int, ...] | UnsetType = UNSET
    logprobs: tuple[float, ...] | UnsetType = UNSET  #: of the sampled ids
    thought: str  #: that a hosted model put beside its text
    counted: CountedTokens | None  #: by a hosted model, which has no token ids


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The token sequence is context_ids and sampled_ids of all turns in order."""

    task_id: UUID
    policy: Policy
    profile: str
    prompt_hashes: tuple[str, ...]  #: of the prompts it was sampled under: several if another version continued it
    temperature: float  #: 0 is greedy
    stop: Stop = msgspec.field(name="stop_reason")
    detail: str = msgspec.field(name="stop_detail")
    answer: Json
    seconds: float
    phases: dict[str, float]  #: seconds of the task in each, from its submission until its end was stored
    offered: tuple[Offer, ...]
    turns: tuple[TurnView, ...]
    masked: bool  #: the policy read or wrote secrets: they are shown as ***, and there are no token ids


class TrajectoryController(Controller):
    path = "/tasks/{task_id:uuid}/trajectory"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012  (the framework copies it)

    @get(summary="Show the trajectory of a task", responses=READ)
    async def trajectory(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        tokenizer: NamedDependency[ChatTokenizer | None],
        tokens: Annotated[bool, QueryParameter(description="include token ids and logprobs")] = True,
        prompt: Annotated[bool, QueryParameter(description="include the prompt of each turn as text")] = True,
    ) -> TrajectoryView:
        """404 until the rollout has ended."""
        task = await tasks.get(session, task_id, access.project_id)
        found = await results.of_task(session, task.id)
        prompts: list[str | None] | None = None
        if prompt:
            prompts = await asyncio.to_thread(prompts_of, found.turns, tokenizer)
        return view(found, tokens=tokens, prompts=prompts)


def prompts_of(turns: Sequence[Turn], tokenizer: ChatTokenizer | None) -> list[str | None]:
    """The text of each turn's `context_ids`; None where they are gone or the tokenizer is not theirs."""
    known = tokenizer is not None and all(tokenizer.is_text_of(turn.text, turn.sampled_ids) for turn in turns)
    return [tokenizer.decode(turn.context_ids) if tokenizer and known else None for turn in turns]


def view(trajectory: Trajectory, *, tokens: bool, prompts: Sequence[str | None] | None = None) -> TrajectoryView:
    """Pure: the span of each turn's sampled tokens follows from the lengths before it."""
    hidden = () if tokens else ("context_ids", "sampled_ids", "logprobs")
    turns = []
    position = 0
    for index, turn in enumerate(trajectory.turns):
        start = (position if turn.extends else 0) + len(turn.context_ids)
        position = start + len(turn.sampled_ids)
        shown = columns(turn, TurnView, "prompt", "sampled_span", *hidden)
        prompt = UNSET if prompts is None else prompts[index]
        turns.append(TurnView(prompt=prompt, sampled_span=(start, position), **shown))
    return TrajectoryView(
        task_id=trajectory.task.id,
        prompt_hashes=trajectory.prompts,
        turns=tuple(turns),
        **columns(trajectory, TrajectoryView, "task_id", "prompt_hashes", "turns"),
    )


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`release` is the number of a release of the task's project."""

    release: Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class ReplaySide(msgspec.Struct, frozen=True, kw_only=True):
    """The task as it was served, or its replay."""

    release: int | None
    stop_reason: Stop | None
    answer: Json
    score: float | None  #: of the task: the one that counts; of its replay: its check's
    turns: int
    generated_tokens: int

    @classmethod
    def of(cls, trajectory: Trajectory, release: int | None, score: float | None) -> Self:
        return cls(
            release=release,
            stop_reason=trajectory.stop,
            score=score,
            turns=len(trajectory.turns),
            **columns(trajectory, cls, "release", "stop_reason", "score", "turns"),
        )


class ReplayTurn(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    observation: str
    calls: tuple[Call, ...]

    @classmethod
    def of(cls, turn: Turn | None) -> Self | None:
        return None if turn is None else cls(text=turn.full_text, observation=turn.observation, calls=turn.calls)


class TurnPair(msgspec.Struct, frozen=True, kw_only=True):
    """The same turn of both; null where one had ended. `same`: the policies wrote the same."""

    same: bool
    task: ReplayTurn | None
    replay: ReplayTurn | None

    @classmethod
    def of(cls, task: Turn | None, replay: Turn | None) -> Self:
        same = task is not None and replay is not None and task.text == replay.text
        return cls(same=same, task=ReplayTurn.of(task), replay=ReplayTurn.of(replay))


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """`replay` is null, and `turns` is empty, until it has ended. `failure` says why it could not go on, such as
    the call that has no recorded answer. `same_changes`: it changed in the APIs exactly what the task changed.
    """

    pending: bool
    failure: str | None
    same_changes: bool | None
    same_answer: bool | None
    task: ReplaySide
    replay: ReplaySide | None
    turns: list[TurnPair]
    links: ConsoleLinks


class ReplayController(Controller):
    path = "/tasks/{task_id:uuid}/replay"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(status_code=202, summary="Do a finished task again", responses=CHANGE)
    async def start_replay(
        self, task_id: FromPath[UUID], data: JSONBody[ReplayRequest], session: Db, access: Caller
    ) -> ReplayView:
        """The release gets the task with the same seed, clock and skills. Its calls are answered by those that the
        task made, and none goes out; a call that these cannot answer ends the replay. 404 until the task has
        ended, or once its trajectory was deleted."""
        task = await tasks.get(session, task_id, access.project_id)
        release, replay = await ask_replay(session, task, data.release)
        await session.commit()
        return await view_replay(session, task, release, replay)

    @get(summary="Compare a task with its replay", responses=READ)
    async def show_replay(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        release: Annotated[int, QueryParameter(ge=1, le=MOST, description="the number of the release")],
    ) -> ReplayView:
        """Turn by turn. 404 if the release was not asked to replay it."""
        task = await tasks.get(session, task_id, access.project_id)
        by = await releases.numbered(session, task.project_id, release)
        replay = await trials_store.replay(session, by.id, task.id)
        if replay is None:
            raise NotFoundError(f"release {release} has not replayed the task: POST /v1/tasks/{task_id}/replay")
        return await view_replay(session, task, by, replay)


async def ask_replay(
    session: AsyncSession, task: tables.Task, number: int
) -> tuple[tables.Release, tables.Shadow]:
    """Have the release of that number do the task again. The caller commits.

    Raises ConflictError for a task without a model, NotFoundError until the task has ended.
    """
    if task.skill_run is not None:
        raise ConflictError("the task ran a skill, without a model: no release would do it otherwise")
    await results.of_task(session, task.id)
    release = await releases.numbered(session, task.project_id, number)
    return release, await trials_store.add_replay(session, release.id, task.id)


async def view_replay(
    session: AsyncSession, task: tables.Task, release: tables.Release, replay: tables.Shadow
) -> ReplayView:
    """Raises NotFoundError if the trajectory of the task was deleted."""
    served = await results.of_task(session, task.id)
    served_by = (await releases.get(session, task.release_id)).number if task.release_id else None
    again = None if replay.record is None else msgspec.msgpack.decode(replay.record, type=Trajectory)
    return ReplayView(
        pending=replay.finished_at is None,
        failure=replay.failure,
        same_changes=replay.same_changes,
        same_answer=None if again is None else again.answer == served.answer,
        task=ReplaySide.of(served, served_by, task.score),
        replay=None if again is None else ReplaySide.of(again, release.number, replay.score),
        turns=[] if again is None else [TurnPair.of(*pair) for pair in zip_longest(served.turns, again.turns)],
        links=ConsoleLinks(f"{console_path('tasks', task.id)}/replay?release={release.number}"),
    )
