"""Reads the served tasks that a run learns from: as rollouts with rewards, or as trajectories to imitate.

They ended in a window of time. Of a project's kinds of tasks, by which it holds some out, all tasks of one are
held out, or none. Tasks without a scenario are of one kind if their instructions are alike and most of what
they called is the same. That is coarser than the scenarios which runs infer: what is learned from shall tell
nothing of what is examined.

A judge scores those that nobody else has scored. What offering skills is worth in a scenario, chance tells:
from a share of tasks all skills are withheld, whatever they are like, since those that use a skill may be the
easy ones.

What was read is kept in the run's directory, so that a retry learns from the same.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.base import plugins
from app.base.errors import AppError, EngineRefusalError, InvalidError, NotFoundError
from app.base.files import write_atomically
from app.base.judge import GroupJudge, NamedJudge, load_judge
from app.base.plugins import PluginSpec
from app.base.run_settings import TRAINED_TEMPERATURE, RunKind, RunSettings
from app.base.settings import Settings
from app.base.values import GOOD, ScoreSource, Task, Trajectory, hosted_id
from app.db import results
from app.db.database import Sessions, reading
from app.db.tables import Release, ReleaseState, SkillState, TaskState
from app.projects import store as projects
from app.projects.kinds import OWN_WORK, is_held_out, kind_that_begins
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import HeldOut, UnlabelledTask
from app.runs import experience
from app.runs.experience import LoggedSkill, LoggedTask
from app.skills.admission import is_worse
from app.skills.checks import is_wrapper
from app.skills.evidence import ENOUGH_WITHHELD, Outcomes
from app.skills.similarity import NgramIndex
from app.skills.value import compared_tasks, withheld_among
from app.tasks import verification
from trainer.hosted import HostedJudge
from trainer.rewards import (
    BaseModel,
    Conduct,
    DataSummary,
    DropReason,
    ReleaseWeights,
    ScoredTask,
    SkillMakers,
    compute_rewards,
    find_flaw,
    group_tasks,
    has_other_prompt,
    infer_scenarios,
    labelled,
    select_best,
    split_into_steps,
    staleness_by_release,
    summarize,
)
from trainer.sage.advantages import ScoredRollout

log = structlog.get_logger(__name__)

_NEAREST = 50  # instructions that are compared
_LEAST = 0.55  # Jaccard similarity of the instructions' n-grams, as of one inferred scenario
_MARGIN = 0.2  # less similar kinds are not possible
_MOST = 0.5  # more of the operations of two solved tasks are the same
_NEARLY_THE_SAME = 0.9  # Jaccard similarity of the instructions' n-grams
_LATEST = 1_000  # tasks of a scenario that are compared
_JUDGED = 1_000  # tasks of one run at most, the latest
_AT_ONCE = 4  # groups that are judged
_SECONDS = 300.0  # to judge one group
_NAME = "logged.msgpack"


class TaskKinds:
    """A kind is a scenario or, of tasks without one, named after the first instruction of those that are alike.

    `new` are the kinds of tasks that had none.
    """

    def __init__(self, logged: Sequence[UnlabelledTask] = ()) -> None:
        """`logged` are oldest first: later tasks change the kind of none before them, and none that has one."""
        self._index: NgramIndex[int] = NgramIndex()
        self._placed: list[tuple[str, UnlabelledTask | None]] = []  # by the index' keys: the kind, and the task
        self._of_task = {
            task.id: self._add(task.kind, task.instruction, task) for task in logged if task.kind is not None
        }
        self.new: dict[UUID, str] = {}
        for task in logged:
            if task.kind is None:
                self.new[task.id] = self._of_task[task.id] = self._place(task)

    def of_task(self, task_id: UUID, instruction: str, scenario: str | None) -> str:
        """The kind of a task; the likeliest if it is not in the log."""
        return self.possible(task_id, instruction, scenario)[0]

    def possible(self, task_id: UUID | None, instruction: str, scenario: str | None) -> list[str]:
        """The kinds that a task can be of, likeliest first: one, if it is in the log or has a scenario."""
        if scenario is not None:
            return [scenario]
        if task_id in self._of_task:
            return [self._of_task[task_id]]
        near = self._near(instruction)
        if not near:
            return [self._add(kind_that_begins(instruction), instruction)]
        best = near[0][1]
        return list(dict.fromkeys(kind for kind, similarity, _ in near if similarity > best - _MARGIN))

    def _place(self, task: UnlabelledTask) -> str:
        alike = (
            kind for kind, _, other in self._near(task.instruction) if other is None or _is_alike(task, other)
        )
        kind = next(alike, kind_that_begins(task.instruction))
        return self._add(kind, task.instruction, task)

    def _near(self, instruction: str) -> list[tuple[str, float, UnlabelledTask | None]]:
        """The kinds of instructions like this one, most alike first, each with its similarity and its task."""
        found = [each for each in self._index.search(instruction, _NEAREST) if each[1] >= _LEAST]
        return [(self._placed[key][0], similarity, self._placed[key][1]) for key, similarity in found]

    def _add(self, kind: str, instruction: str, task: UnlabelledTask | None = None) -> str:
        self._index.add(len(self._placed), instruction, task.slots if task else ())
        self._placed.append((kind, task))
        return kind


def _is_alike(task: UnlabelledTask, other: UnlabelledTask) -> bool:
    """Whether what they called may be of one kind. Who called nothing may be of any."""
    own, others = task.operations, other.operations
    if not own or not others:
        return True
    if not (task.solved and other.solved):
        return own <= others or others <= own
    return len(own & others) > _MOST * len(own | others)


async def read_held_out(session: AsyncSession, project_id: UUID, environment: str = "") -> "HeldOutTasks":
    """What a project's runs may not learn from now, among it the version of an exam that `environment` names.

    Of a long log it takes seconds, in a thread: give it a session of `reading`. Raises NotFoundError if there is
    no such version.
    """
    spec, named = PluginSpec.parse(environment), []
    if spec.name == "exam" and (digest := spec.options.get("digest")):
        named.append((await exams.get(session, project_id, spec.options.get("name", OWN_WORK), digest=digest)).id)
    return await asyncio.to_thread(HeldOutTasks, await exams.held_out(session, project_id, named))


class HeldOutTasks:
    """Recognises them: by the scenario, by tasks that are like them, or by nearly the same instruction."""

    def __init__(self, held_out: HeldOut) -> None:
        self._held_out = held_out
        self._kinds = TaskKinds(held_out.logged)
        self._examined = {
            kind
            for task in held_out.tasks
            for kind in (
                *self._kinds.possible(task.task_id, task.instruction, task.scenario),
                *(self._kinds.possible(None, task.instruction, None) if task.scenario is not None else ()),
            )
        }
        self._instructions: NgramIndex[int] = NgramIndex()
        for number, task in enumerate(held_out.tasks):
            self._instructions.add(number, task.instruction)

    def __contains__(self, task: Task) -> bool:
        return self.holds(task.instruction, task.scenario, task.id)

    def holds(self, instruction: str, scenario: str | None, task_id: UUID | None = None) -> bool:
        """Whether a task of this instruction is held out."""
        held, possible = self._held_out, self._kinds.possible(task_id, instruction, scenario)
        if any(kind in self._examined or is_held_out(held.project_id, kind, held.percent) for kind in possible):
            return True
        return self.resembles(instruction)

    def resembles(self, text: str) -> bool:
        """Whether a text is nearly the instruction of a task of an exam."""
        nearest = self._instructions.search(text, 1)
        return bool(nearest) and nearest[0][1] >= _NEARLY_THE_SAME


class Window(msgspec.Struct, frozen=True):
    """The tasks that ended in a window of time."""

    ended: int  # in all
    tasks: list[ScoredTask]  # oldest first
    scenarios: list[str]  # of each
    makers: SkillMakers
    dropped: list[DropReason]  # why the others are not among `tasks`


async def read_window(session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel) -> Window:
    """Read the window that the settings name, on a session of `reading`: it computes for seconds in between.

    Raises NotFoundError if the project has no active release.
    """
    rows = await experience.window(session, project_id, since=settings.since, until=settings.until)
    trusted = await verification.trusted(session, project_id, {row.judged_by for row in rows})
    reasons = {row.id: why_dropped(row, trusted) for row in rows}
    learned = await _learned_until(session, project_id, settings)
    usable = [row for row in rows if reasons[row.id] is None]
    reasons |= dict.fromkeys(experience.beyond_replay(usable, learned, settings.replay), DropReason.LEARNED)
    scored = {row.id: row for row in rows if reasons[row.id] is None}
    tasks = await _scored_tasks(session, project_id, scored, settings, base)
    skills = await experience.skills(
        session,
        project_id,
        made_by=[task.id for task in tasks],
        ids={offer.skill_id for task in tasks for offer in task.trajectory.offered},
    )
    texts = [task.trajectory.task for task in tasks]
    slots: dict[UUID, set[str]] = defaultdict(set)  # words of instructions that skills took as arguments
    for skill in skills:
        if skill.task_id is not None:
            slots[skill.task_id].update(skill.slots)
    conduct = {task.id: Conduct.of(task.trajectory, solved=task.score >= GOOD) for task in tasks}
    without_trajectory = [DropReason.NOT_KEPT] * (len(scored) - len(tasks))
    return Window(
        ended=len(rows),
        tasks=tasks,
        scenarios=await asyncio.to_thread(infer_scenarios, texts, slots, conduct),
        makers={skill.id: skill.task_id for skill in skills if _may_earn(skill)},
        dropped=[reason for reason in reasons.values() if reason is not None] + without_trajectory,
    )


async def learns_from(session: AsyncSession, project_id: UUID, settings: RunSettings) -> datetime | None:
    """What ended before this the run would drop as learned, if all of its window had scores. None: nothing."""
    learned = await _learned_until(session, project_id, settings)
    rows = await experience.window(session, project_id, since=settings.since, until=settings.until)
    usable = [row for row in rows if row.executed]
    dropped = set(experience.beyond_replay(usable, learned, settings.replay))
    return min((row.finished_at for row in usable if row.id not in dropped), default=learned)


async def _learned_until(session: AsyncSession, project_id: UUID, settings: RunSettings) -> datetime | None:
    """None for runs that do not leave out what was learned."""
    if settings.kind is not RunKind.LOGGED or settings.since is not None:
        return None
    return await experience.learned_until(session, project_id)


def why_dropped(row: LoggedTask, trusted: Container[str | None]) -> DropReason | None:
    """Why a task is not learned from; None if it is. `trusted` are judges."""
    if row.state is TaskState.CANCELLED:
        return DropReason.CANCELLED
    if not row.executed:
        return DropReason.FAILED
    if row.score_source is ScoreSource.JUDGE and row.judged_by not in trusted:
        return DropReason.UNPROVEN_JUDGE
    return DropReason.UNSCORED if row.score is None else None


async def _scored_tasks(
    session: AsyncSession, project_id: UUID, rows: dict[UUID, LoggedTask], settings: RunSettings, base: BaseModel
) -> list[ScoredTask]:
    """The scored tasks, in the order in which they began. Those of hosted models are for supervised runs, which
    have them told anew in the prompt that the model servers' model is served with.
    """
    active = await releases.active(session, project_id)
    every = {release.id: release for release in await releases.of_project(session, project_id)}
    served = next((each.prompt for each in (active, *every.values()) if _serves_here(each)), None)
    held_out = await read_held_out(session, project_id, settings.environment)
    staleness = staleness_by_release([_weights(each) for each in every.values()], active.number, base.start)
    tasks = []
    async for trajectory in experience.trajectories(session, list(rows)):
        row = rows[trajectory.task.id]
        assert row.release_id is not None  # a finished task has a release, a start and a score
        assert row.started_at is not None
        assert row.score is not None
        flaw = DropReason.HELD_OUT if trajectory.task in held_out else find_flaw(trajectory, row.base, base)
        retold = flaw is DropReason.HOSTED and settings.kind is RunKind.SFT
        flaw = None if retold else flaw
        if flaw is None and trajectory.task.conversation and trajectory.task.scenario is None:
            flaw = DropReason.CONVERSATION
        if flaw is None and not retold and has_other_prompt(trajectory, every[row.release_id].prompt, served):
            flaw = DropReason.OTHER_PROMPT
        tasks.append(
            ScoredTask(
                trajectory=trajectory,
                score=row.score,
                began=row.started_at,
                release=every[row.release_id].number,
                staleness=staleness[row.release_id],
                unusable=flaw,
            )
        )
    return sorted(tasks, key=lambda task: (task.began, task.id))


def _serves_here(release: Release) -> bool:
    """It is served, or was, by the model servers."""
    return hosted_id(release.model) is None and release.activated_at is not None


def _weights(release: Release) -> ReleaseWeights:
    served = release.state in (ReleaseState.ACTIVE, ReleaseState.RETIRED)
    return ReleaseWeights(release.id, release.number, release.model, served)


def _may_earn(skill: LoggedSkill) -> bool:
    """A wrapper of one API call earns no bonus, nor does a deleted skill."""
    return skill.state is not SkillState.DELETED and not is_wrapper(skill.source)


class TrialTask(NamedTuple):
    """A scored task that was offered skills, or would have been."""

    scenario: str
    withheld: bool
    score: float


async def read_use_values(session: AsyncSession, project_id: UUID, window: Window) -> dict[str, float]:
    """Of labelled scenarios by all tasks of the log, of inferred ones by those of the window."""
    compared = await compared_tasks(session, project_id)
    tried = [
        TrialTask(labelled(task.scenario), task.withheld, task.score)
        for task in compared
        if task.scenario is not None
    ]
    plain = [
        (task, scenario)
        for task, scenario in zip(window.tasks, window.scenarios, strict=True)
        if task.trajectory.task.scenario is None
    ]
    withheld = await withheld_among(session, [task.id for task, _ in plain])
    tried += [
        TrialTask(scenario, task.id in withheld, task.score)
        for task, scenario in plain
        if task.trajectory.offered or task.id in withheld
    ]
    return use_values(tried)


def use_values(tasks: Iterable[TrialTask]) -> dict[str, float]:
    """Of scenarios in which enough tasks did without: the share of successes of those that were offered skills,
    minus that of the others. A loss that chance explains in one of five cases is none, as for a skill's standing.

    `tasks` are oldest first; of each scenario the latest count.
    """
    of_scenario: dict[str, list[TrialTask]] = defaultdict(list)
    for task in tasks:
        of_scenario[task.scenario].append(task)
    found = {}
    for scenario, tried in of_scenario.items():
        latest = tried[-_LATEST:]
        offered, withheld = (_outcomes([each for each in latest if each.withheld is arm]) for arm in (False, True))
        if withheld.total >= ENOUGH_WITHHELD and offered.total:
            assert offered.rate is not None
            assert withheld.rate is not None
            difference = offered.rate - withheld.rate
            found[scenario] = difference if is_worse(offered, withheld) else max(0.0, difference)
    return found


def _outcomes(tasks: Sequence[TrialTask]) -> Outcomes:
    good = sum(task.score >= GOOD for task in tasks)
    return Outcomes(good, len(tasks) - good)


async def judge_window(sessions: Sessions, project_id: UUID, settings: RunSettings, deployment: Settings) -> None:
    """Ask the judge that SAGE_JUDGE names, if it compares groups, and the project has no verifier.

    A group without an answer stays as it is, and the log names the reason. Raises SettingError.
    """
    named = await _judge_of(sessions, project_id, deployment)
    if named is None or named.group is None:
        return
    async with sessions() as session:
        own = projects.settings_of(await projects.by_id(session, project_id))
        if own.verifier is not None:
            return
        name = named.name(own.rubric)
        window = {"since": settings.since, "until": settings.until}
        window["unscored_since"] = await learns_from(session, project_id, settings)
        ids = await verification.wanted(session, project_id, name, **window, limit=_JUDGED)
        tasks = [each async for each in experience.trajectories(session, ids)]
    groups = await asyncio.to_thread(_groups, tasks, named.group.group_size)
    for start in range(0, len(groups), _AT_ONCE):
        some = groups[start : start + _AT_ONCE]
        found = await asyncio.gather(*(_ask(named.group, own.rubric, group) for group in some))
        for group, given in zip(some, found, strict=True):
            if not isinstance(given, AppError):
                await _store(sessions, group, given, name)
        if any(isinstance(given, EngineRefusalError) for given in found):
            return


async def _judge_of(sessions: Sessions, project_id: UUID, deployment: Settings) -> NamedJudge | None:
    """None also for a project without the hosted model that is to judge."""
    named = load_judge(deployment.judge)
    if named is None or not isinstance(named.group, HostedJudge):
        return named
    try:
        return await named.group.of_project(sessions, project_id, deployment)
    except NotFoundError as error:
        log.warning("tasks could not be judged", cause=str(error))
        return None


def _groups(tasks: Sequence[Trajectory], size: int) -> list[list[Trajectory]]:
    """Of one kind and one release each, as a run compares them."""
    kinds: dict[tuple[str, UUID | None], list[Trajectory]] = defaultdict(list)
    for task, kind in zip(tasks, infer_scenarios([each.task for each in tasks]), strict=True):
        kinds[kind, task.policy.release].append(task)
    return [some[start : start + size] for some in kinds.values() for start in range(0, len(some), size)]


async def _ask(judge: GroupJudge, rubric: str, group: Sequence[Trajectory]) -> Sequence[float | None] | AppError:
    """Its scores, or why there are none."""
    try:
        async with asyncio.timeout(_SECONDS):
            given = await judge.score_group(rubric, group)
        if len(given) != len(group) or not all(each is None or 0 <= each <= 1 for each in given):
            raise InvalidError("the judge answered nonsense: not one score in [0, 1] for each task")
        return given
    except AppError as error:
        log.warning("tasks could not be judged", tasks=len(group), cause=str(error))
        return error
    except Exception:  # code of other packages
        log.exception("tasks could not be judged", tasks=len(group))
        return InvalidError("the judge failed")


async def _store(
    sessions: Sessions, group: Sequence[Trajectory], given: Sequence[float | None], judged_by: str
) -> None:
    """In the order of the ids, as all do that lock several tasks."""
    pairs = sorted((each.task.id, score) for each, score in zip(group, given, strict=True) if score is not None)
    async with sessions.begin() as session:
        for task_id, score in pairs:
            await results.give(session, task_id, score, ScoreSource.JUDGE, judged_by=judged_by)


class LoggedExperience(msgspec.Struct, frozen=True):
    """The data of a run of kind `logged`."""

    start: str  # the weights that it was read for, as in `BaseModel`
    steps: list[list[ScoredRollout]]
    data: DataSummary


class BestExperience(msgspec.Struct, frozen=True):
    """The data of a run of kind `sft`."""

    trajectories: list[Trajectory]
    data: DataSummary


async def read_logged(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel
) -> LoggedExperience:
    """The scored rollouts of the window that the settings name, split into at most as many steps as they name.

    Raises InvalidError with advice where nothing is left to learn from.
    """
    window = await read_window(session, project_id, settings, base)
    tasks = [_check_on_policy(task, settings.max_staleness) for task in window.tasks]
    rule = plugins.load("sage.rewards", settings.reward)
    known = await read_use_values(session, project_id, window)
    rewards = compute_rewards(tasks, window.scenarios, window.makers, rule, known)
    grouped = group_tasks(tasks, rewards, window.scenarios)
    rollouts = [rollout for _, rollout in grouped.kept]
    steps = split_into_steps(rollouts, settings.pairs, settings.steps, settings.seed)
    in_steps = {rollout.group for step in steps for rollout in step}
    kept = [(task, rollout.group) for task, rollout in grouped.kept if rollout.group in in_steps]
    beyond = [DropReason.BEYOND_STEPS] * (len(rollouts) - len(kept))
    data = summarize(window.ended, kept, [*window.dropped, *grouped.dropped, *beyond])
    return LoggedExperience(base.start, steps, data)


async def read_best(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel, *, count: int = 4
) -> BestExperience:
    """The `count` best successes of each scenario, with skills offered and without.

    An example may be stale, and sampled at any temperature. Raises InvalidError with advice where nothing
    succeeded.
    """
    window = await read_window(session, project_id, settings, base)
    best = select_best(window.tasks, window.scenarios, frozenset(window.makers.values()), count)
    data = summarize(window.ended, best.kept, [*window.dropped, *best.dropped])
    return BestExperience([task.trajectory for task, _ in best.kept], data)


def _check_on_policy(task: ScoredTask, max_staleness: int) -> ScoredTask:
    """The task, marked unusable if its samples are too stale, of another temperature, or misled by a refusal."""
    if task.unusable is not None:
        return task
    if task.staleness > max_staleness:
        return msgspec.structs.replace(task, unusable=DropReason.STALE)
    if task.trajectory.temperature != TRAINED_TEMPERATURE:
        return msgspec.structs.replace(task, unusable=DropReason.WRONG_TEMPERATURE)
    if task.trajectory.kept_back:
        return msgspec.structs.replace(task, unusable=DropReason.KEPT_BACK)
    return task


RecordTasks: TypeAlias = Callable[[Collection[UUID]], Awaitable[bool]]
"""Records the tasks that a run learns from. False if one of them was erased since it was read."""


async def read_once(
    sessions: Sessions,
    project_id: UUID,
    settings: RunSettings,
    base: BaseModel,
    directory: Path,
    record: RecordTasks,
    *,
    deployment: Settings = Settings(),  # noqa: B008  frozen
) -> LoggedExperience:
    """`read_logged` on the first call for a directory, the same result on later ones that continue the same
    weights. The judge of the deployment is asked before.

    Raises also InvalidError for a snapshot that cannot be read, and StorageError if it cannot be written.
    """
    path = directory / _NAME
    if path.exists():
        try:
            kept = msgspec.msgpack.decode(path.read_bytes(), type=LoggedExperience)
        except msgspec.DecodeError as error:
            raise InvalidError(
                f"{path} cannot be read ({error}): delete it to make the run read its data again"
            ) from error
        if kept.start == base.start:
            return kept
    await judge_window(sessions, project_id, settings, deployment)
    while True:  # each round again has fewer tasks
        async with reading(sessions) as session:
            experience = await read_logged(session, project_id, settings, base)
        if await record({each.trajectory.task.id for step in experience.steps for each in step}):
            break
    write_atomically(msgspec.msgpack.encode(experience), path)
    return experience
