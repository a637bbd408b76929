"""From served tasks to what a policy learns from: scenarios, rewards, groups, and why the rest is dropped. Pure.

A scenario without a label is inferred. Instructions alone mix "approve the leave of ann" with "reject the leave
of ann". What tasks called tells them apart: solved tasks of one kind called the same operations, and one that
failed called none that these did not.

Served tasks form chains of their own accord: a task makes a skill, and the library offers it to later tasks
that have the same scenario or a near instruction. Each offer is a chain of two, rewarded as in training; a task
that is part of many chains gets the best reward of any of them, so never more than one bonus.

A group has one scenario and one release, and all of its tasks were offered skills, or none. Groups are of the
size of rollouts', so that more tasks give more steps, not steps of larger groups.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from random import Random
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from app.agent.action import extract_code
from app.base.errors import InvalidError
from app.base.untrusted import syntax_tree
from app.base.values import SOLVED, Stop, Task, Trajectory, hosted_id
from app.engine.tokenizer import ChatTokenizer
from app.skills.similarity import NgramIndex
from trainer.sage.advantages import MIN_SIGNAL, ScoredRollout
from trainer.sage.reward import ChainStep, Reward, RewardRule, with_use_values

_NEAREST = 20  # instructions that are compared
_SIZE = 8  # of a group at most, as many as rollouts of a chain (SAGE's G)


class DropReason(StrEnum):
    """Reasons for dropping a task; the first that applies is counted."""

    CANCELLED = "cancelled"
    FAILED = "failed"
    NOT_KEPT = "not_kept"  # its trajectory was deleted
    UNSCORED = "unscored"
    UNPROVEN_JUDGE = "unproven_judge"  # scored by a judge that is not known to decide as people do
    LEARNED = "learned"  # the policy that serves could learn from it already
    HELD_OUT = "held_out"  # candidates are examined on it, or on one that is like it
    STALE = "stale"  # sampled by a release too many releases ago
    CONVERSATION = "conversation"  # without a scenario, its instruction alone does not say what it is like
    SECRET = "secret"  # the policy read or wrote a secret, so the trajectory has no tokens
    OTHER_BASE = "other_base"  # sampled by another base model
    OTHER_PROMPT = "other_prompt"  # sampled under another prompt than the one that is served, or under several
    HOSTED = "hosted"  # a hosted model has no token ids and logprobs
    EMPTY = "empty"  # the policy sampled no token
    BAD_LOGPROBS = "bad_logprobs"  # not finite
    WRONG_TEMPERATURE = "wrong_temperature"  # not 1, so the logprobs are not those of the sampling distribution
    KEPT_BACK = "kept_back"  # exploring, it was kept from a call that is not open to that
    NO_PEERS = "no_peers"  # no other task to compare it with
    EQUAL_REWARDS = "equal_rewards"  # its whole group earned the same
    BEYOND_STEPS = "beyond_steps"  # the run has no step left for its group
    UNSUCCESSFUL = "unsuccessful"  # not worth imitating
    CUT_OFF = "cut_off"  # a turn hit the token limit or had no code, so it is no example
    UNFIT = "unfit"  # what a hosted model wrote is longer than the model's context, or not in its vocabulary
    SURPLUS = "surplus"  # others of its scenario succeeded with fewer tokens


ADVICE = {
    DropReason.CANCELLED: "wait for tasks that are not cancelled",
    DropReason.FAILED: "look at the `failure` of the tasks",
    DropReason.NOT_KEPT: "raise `keep_trajectories`, a setting of the project",
    DropReason.UNSCORED: "submit tasks with a `check`, or score them (POST /v1/feedback with their `task_id`)",
    DropReason.UNPROVEN_JUDGE: (
        "score tasks that the judge has scored (GET /v1/feedback/wanted), until GET /v1/judge/agreement says that "
        "it is trusted, or lower `judge_agreement`, a setting of the project"
    ),
    DropReason.LEARNED: "wait for new tasks, or raise both `replay` and `max_staleness`",
    DropReason.HELD_OUT: "lower `holdout_percent`, a setting of the project, or make its exams smaller",
    DropReason.STALE: "raise `max_staleness`, or wait for tasks of the active release",
    DropReason.CONVERSATION: "give tasks that follow a conversation a `scenario`",
    DropReason.SECRET: "fill in the secrets of the APIs with `bind`, so that the policy does not meet them",
    DropReason.OTHER_BASE: "wait for tasks of the model that is being served",
    DropReason.OTHER_PROMPT: "wait for tasks of the version, or the prompt profile, that serves now",
    DropReason.HOSTED: (
        "a hosted model has no token ids and logprobs: let runs of kind `sft` learn from its tasks, or serve a "
        "release of the model server"
    ),
    DropReason.EMPTY: "look at the trajectories: the model generated nothing",
    DropReason.BAD_LOGPROBS: "check the model server: it reported logprobs that are not finite",
    DropReason.WRONG_TEMPERATURE: (
        "let more tasks explore: raise explore_percent, open operations to exploration or set explore_writes, or "
        "serve with SAGE_TEMPERATURE=1"
    ),
    DropReason.KEPT_BACK: "open to exploration what such tasks change, or nothing of it",
    DropReason.NO_PEERS: "serve several tasks of one kind, or give them the same `scenario`",
    DropReason.EQUAL_REWARDS: (
        "wait for tasks that succeed as well as fail; at temperature 0 identical tasks give identical rollouts"
    ),
    DropReason.BEYOND_STEPS: "raise `steps` or `pairs`",
    DropReason.CUT_OFF: "raise SAGE_MAX_TURN_TOKENS, so that answers are not cut off",
    DropReason.UNFIT: "train a model with a longer context, or lower SAGE_MAX_TURNS",
    DropReason.UNSUCCESSFUL: "wait for tasks that succeed, or train on `data` from elsewhere",
}
"""What to do where a reason left nothing to learn from. `SURPLUS` needs none: others were kept."""


class ScoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A served task, its trajectory and its score."""

    trajectory: Trajectory
    score: float  # in [0, 1]
    began: datetime
    release: int  # number of the release that sampled it
    staleness: int  # releases between that one and the active one
    unusable: DropReason | None = None  # why it is not learned from, although the skills it used still count

    @property
    def id(self) -> UUID:
        return self.trajectory.task.id

    @property
    def success(self) -> bool:
        return self.score >= SOLVED and self.trajectory.stop is not Stop.NO_CODE

    @property
    def position(self) -> int:
        """0 if the policy was offered no skills, 1 if it was: the two are never compared with each other."""
        return 1 if self.trajectory.offered else 0


class _Likeness(NamedTuple):
    """Jaccard similarity of word n-grams between instructions of one scenario."""

    least: float
    margin: float  # over the next scenario that it could be


_ALL_CALLED, _LESS_CALLED = _Likeness(0.55, 0.2), _Likeness(0.65, 0.25)  # fewer calls show less of a kind


class Conduct(NamedTuple):
    """What a task did: the operations that answered, and whether it was solved."""

    operations: frozenset[str] = frozenset()
    solved: bool = True

    @classmethod
    def of(cls, trajectory: Trajectory, *, solved: bool) -> "Conduct":
        return cls(frozenset(call.api for call in trajectory.calls if call.error is None), solved)

    def fits(self, first: "Conduct") -> bool:
        """Whether it may be of the scenario of a task."""
        return self.operations == first.operations if self.solved else self.operations <= first.operations


def infer_scenarios(
    tasks: Sequence[Task],
    slots: Mapping[UUID, Collection[str]] | None = None,
    conduct: Mapping[UUID, Conduct] | None = None,
) -> list[str]:
    """A scenario key for each task, in their order.

    An unlabelled task joins the scenario whose instructions are nearest to its own, or starts a new one. `slots`
    are words of a task's instruction that are known arguments, so they may differ; `conduct` is what tasks did.

    >>> from uuid import UUID
    >>> texts = ["delete the mails from iris", "delete mails from omar", "pay the rent"]
    >>> [key[-1] for key in infer_scenarios([Task(UUID(int=n), text) for n, text in enumerate(texts)])]
    ['0', '0', '2']
    """
    families = _Families(slots or {}, conduct or {})
    unlabelled = [task for task in tasks if task.scenario is None]
    for task in sorted(unlabelled, key=lambda task: not families.conduct(task).solved):  # the solved ones first
        families.place(task)
    return [
        f"like {families.first[task.id]}" if task.scenario is None else labelled(task.scenario) for task in tasks
    ]


def labelled(scenario: str) -> str:
    """The key of a labelled scenario."""
    return f"scenario {scenario}"


class _Families:
    """Tasks by the first task of their scenario."""

    def __init__(self, slots: Mapping[UUID, Collection[str]], conduct: Mapping[UUID, Conduct]) -> None:
        self._slots, self._conduct = slots, conduct
        self._index: NgramIndex[UUID] = NgramIndex()
        self.first: dict[UUID, UUID] = {}
        self._of_first: dict[UUID, Conduct] = {}

    def conduct(self, task: Task) -> Conduct:
        return self._conduct.get(task.id, Conduct())

    def place(self, task: Task) -> None:
        own = self.conduct(task)
        first = self._nearest(task, own)
        if first is None:
            first = task.id
            self._of_first[first] = own
        self.first[task.id] = first
        if own.solved or first == task.id:
            self._index.add(task.id, task.instruction, self._slots.get(task.id, ()))

    def _nearest(self, task: Task, own: Conduct) -> UUID | None:
        """The scenario that it certainly is of, if there is one."""
        best: dict[UUID, float] = {}  # the similarity of each scenario that it could be, best first
        for other, similarity in self._index.search(task.instruction, _NEAREST):
            first = self.first[other]
            if own.fits(self._of_first[first]):
                best.setdefault(first, similarity)
        if not best:
            return None
        (first, similarity), *others = best.items()
        next_one = others[0][1] if others else 0.0
        wanted = _ALL_CALLED if own.operations == self._of_first[first].operations else _LESS_CALLED
        certain = similarity >= wanted.least and similarity - next_one >= wanted.margin
        return first if certain else None


class BaseModel(msgspec.Struct, frozen=True):
    """The model that a run trains."""

    name: str  # as in the adapters' rows
    tokenizer: ChatTokenizer
    start: str  # the weights that the run continues: an adapter's hash, or BASE


class ReleaseWeights(msgspec.Struct, frozen=True):
    """The weights of one release."""

    id: UUID
    number: int
    model: str  # the adapter's hash, or the base model
    served: bool  # active now or earlier


def find_flaw(trajectory: Trajectory, sampled_by: str | None, base: BaseModel) -> DropReason | None:
    """Why a trajectory cannot be learned from, None if it can. `sampled_by` is its release's base model, if known.

    Where it is not, the tokens show it: decoded with another model's vocabulary they differ from the stored text.
    """
    if trajectory.masked:
        return DropReason.SECRET
    if hosted_id(trajectory.policy.model) is not None:
        return DropReason.HOSTED
    if sampled_by not in (None, base.name):
        return DropReason.OTHER_BASE
    if not all(base.tokenizer.is_text_of(turn.text, turn.sampled_ids) for turn in trajectory.turns):
        return DropReason.OTHER_BASE
    if trajectory.flaw is not None:
        return DropReason(trajectory.flaw)
    if not all(isfinite(logprob) for turn in trajectory.turns for logprob in turn.logprobs):
        return DropReason.BAD_LOGPROBS
    return None


def has_other_prompt(trajectory: Trajectory, release: str | None, served: str | None) -> bool:
    """A turn was sampled under another prompt than the one `served` now. What an earlier version sampled has that
    of its `release`; where neither is known, the prompt is taken to be the same.
    """
    known = set(trajectory.prompts or filter(None, [release]))
    return served is not None and bool(known - {served})


def staleness_by_release(releases: Sequence[ReleaseWeights], active: int, learner: str) -> dict[UUID, int]:
    """How many weight changes lie between each release and the one numbered `active`, at least 1.

    0 only for releases whose weights are those being trained, `learner`. Releases that never served do not count,
    nor do those that changed only tools or the prompt.
    """
    served = sorted((release.number, release.model) for release in releases if release.served)
    changes = [number for (_, before), (number, model) in pairwise(served) if model != before]

    def staleness(release: ReleaseWeights) -> int:
        low, high = sorted((release.number, active))
        return 0 if release.model == learner else max(1, sum(low < number <= high for number in changes))

    return {release.id: staleness(release) for release in releases}


def chain_step(
    trajectory: Trajectory, score: float, *, success: bool, creditable: frozenset[UUID], known: bool = True
) -> ChainStep:
    """The step of a chain; `score` is the verifier's, in [0, 1]; `creditable` are the skills it made that can earn
    a bonus; `known` is False if the verifier cannot tell. One that ended without code is no success, whatever the
    verifier says: neither it nor the maker of its skills earns a bonus.
    """
    no_code = trajectory.stop is Stop.NO_CODE
    return ChainStep(
        score=score,
        success=success and not no_code,
        no_code=no_code,
        creditable=creditable,
        used=frozenset(offer.skill_id for offer in trajectory.used()),
        called_by_name=_called_by_name(trajectory),
        known=known,
    )


def _called_by_name(trajectory: Trajectory) -> frozenset[UUID]:
    if not trajectory.offered:
        return frozenset()
    called: set[str] = set()
    defined: set[str] = set()
    for turn in trajectory.turns:
        tree = _parse(turn.full_text)
        if tree is None:
            return frozenset()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
            elif isinstance(node, ast.FunctionDef):
                defined.add(node.name)
    return frozenset(offer.skill_id for offer in trajectory.offered if offer.name in called - defined)


def _parse(text: str) -> ast.AST | None:
    """The code of a turn; None if it is too deep to be parsed, and so may define and call anything."""
    try:
        return syntax_tree(extract_code(text) or "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])
    except (RecursionError, MemoryError):
        return None


SkillMakers: TypeAlias = Mapping[UUID, UUID | None]
"""The task that made each skill that may earn a bonus; None for a task that was deleted."""


def compute_rewards(
    tasks: Sequence[ScoredTask],
    scenarios: Sequence[str],
    makers: SkillMakers,
    rule: RewardRule,
    use_values: Mapping[str, float] = MappingProxyType({}),
) -> list[Reward]:
    """One reward per task, in their order; `scenarios` has that of each, `use_values` what trials have shown.

    A maker that is not among `tasks` gets no reward, but a success that used its skill does. A skill that is not
    in `makers` earns no bonus.
    """
    made: dict[UUID | None, set[UUID]] = defaultdict(set)
    for skill, by in makers.items():
        made[by].add(skill)
    own = [
        chain_step(task.trajectory, task.score, success=task.success, creditable=frozenset(made[task.id]))
        for task in tasks
    ]
    valued = with_use_values(own, scenarios, use_values)
    steps: dict[UUID | None, ChainStep] = {task.id: step for task, step in zip(tasks, valued, strict=True)}
    began = {task.id: task.began for task in tasks}
    best = {task.id: rule([steps[task.id]])[0] for task in tasks}
    for user in tasks:
        for maker, skills in _offered_by_maker(user, makers).items():
            if maker is not None and maker in began and began[maker] >= user.began:
                continue  # the library held the skill before this task made it: not a chain
            first = steps.get(maker) or ChainStep(score=0.0, success=False, creditable=skills)
            pair = rule([first, steps[user.id]])
            for task_id, reward in zip((maker, user.id), pair, strict=True):
                if task_id in best:
                    best[task_id] = max(best[task_id], reward, key=lambda each: each.total)
    return [best[task.id] for task in tasks]


def _offered_by_maker(user: ScoredTask, makers: SkillMakers) -> dict[UUID | None, frozenset[UUID]]:
    """The skills that a task was offered, by the task that made them."""
    offered: dict[UUID | None, set[UUID]] = defaultdict(set)
    for offer in user.trajectory.offered:
        if offer.skill_id in makers:
            offered[makers[offer.skill_id]].add(offer.skill_id)
    return {maker: frozenset(skills) for maker, skills in offered.items()}


T = TypeVar("T")


class Selected(NamedTuple, Generic[T]):
    """The tasks that are learned from, in their order, each with what is made of it, and why others are not."""

    kept: list[tuple[ScoredTask, T]]
    dropped: list[DropReason]


def group_tasks(
    tasks: Sequence[ScoredTask], rewards: Sequence[Reward], scenarios: Sequence[str]
) -> Selected[ScoredRollout]:
    """The tasks of groups with a learning signal, each as a rollout; `rewards` and `scenarios` are those of each.

    Unusable tasks are dropped before groups are compared. What would be a large group is cut into equal parts, by
    time.
    """
    dropped = [task.unusable for task in tasks if task.unusable is not None]
    usable = [each for each in zip(tasks, rewards, scenarios, strict=True) if each[0].unusable is None]
    comparable = [(f"{scenario}, release {task.release}", task.position) for task, _, scenario in usable]
    sizes, seen = Counter(comparable), Counter[tuple[str, int]]()
    rollouts: list[ScoredRollout] = []
    totals: dict[tuple[str, int], list[float]] = defaultdict(list)  # by group and position
    for (task, reward, _), key in zip(usable, comparable, strict=True):
        part = seen[key] * -(-sizes[key] // _SIZE) // sizes[key]
        seen[key] += 1
        group = f"{key[0]}, part {part + 1}" if part else key[0]
        rollouts.append(scored_rollout(task.trajectory, reward, group, task.position, task.staleness))
        totals[group, task.position].append(reward.total)
    kept = []
    for (task, _, _), rollout in zip(usable, rollouts, strict=True):
        if reason := _why_no_signal(totals[rollout.group, rollout.position]):
            dropped.append(reason)
        else:
            kept.append((task, rollout))
    return Selected(kept, dropped)


def scored_rollout(
    trajectory: Trajectory, reward: Reward, group: str, position: int, staleness: int = 0
) -> ScoredRollout:
    return ScoredRollout(
        trajectory=trajectory,
        reward=reward.total,
        score=reward.score,
        bonus=reward.bonus,
        group=group,
        position=position,
        staleness=staleness,
    )


def _why_no_signal(totals: Sequence[float]) -> DropReason | None:
    if len(totals) == 1:
        return DropReason.NO_PEERS
    return DropReason.EQUAL_REWARDS if max(totals) - min(totals) < MIN_SIGNAL else None


def split_into_steps(
    rollouts: Sequence[ScoredRollout], groups_per_step: int, steps: int, seed: int
) -> list[list[ScoredRollout]]:
    """At most `steps` lists, shuffled by the seed alone. No group is split between steps."""
    groups: dict[str, list[ScoredRollout]] = defaultdict(list)
    for each in rollouts:
        groups[each.group].append(each)
    names = sorted(groups)
    Random(f"steps {seed}").shuffle(names)
    chunks = [names[start : start + groups_per_step] for start in range(0, len(names), groups_per_step)]
    return [[each for name in chunk for each in groups[name]] for chunk in chunks[:steps]]


def select_best(
    tasks: Sequence[ScoredTask], scenarios: Sequence[str], makers: Collection[UUID | None], count: int
) -> Selected[str]:
    """The `count` best successes of each scenario, with skills offered and without, each with its scenario.

    First those that used an offered skill or, where none was offered, made one (`makers` are the tasks that did);
    then those with the fewest tokens. With and without are selected apart, or the short tasks that use skills
    would crowd out those that write them.
    """
    dropped: list[DropReason] = []
    candidates: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, (task, scenario) in enumerate(zip(tasks, scenarios, strict=True)):
        reason = task.unusable or _not_an_example(task)
        if reason is not None:
            dropped.append(reason)
        else:
            candidates[scenario, task.position].append(index)
    selected: list[int] = []
    for indices in candidates.values():
        ranked = sorted(indices, key=lambda index: _rank(tasks[index], makers))
        selected += ranked[:count]
        dropped += [DropReason.SURPLUS] * len(ranked[count:])
    return Selected([(tasks[index], scenarios[index]) for index in sorted(selected)], dropped)


def _not_an_example(task: ScoredTask) -> DropReason | None:
    if not task.success:
        return DropReason.UNSUCCESSFUL
    turns = task.trajectory.turns
    whole = all(turn.finish != "length" and extract_code(turn.full_text) is not None for turn in turns)
    return None if whole else DropReason.CUT_OFF


def _rank(task: ScoredTask, makers: Collection[UUID | None]) -> tuple[bool, int]:
    """Sort key: lower is better."""
    offered = bool(task.trajectory.offered)
    with_skill = next(task.trajectory.used(), None) is not None if offered else task.id in makers
    return not with_skill, task.trajectory.generated_tokens


class DataSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one run, stored with its result."""

    tasks: int  # that ended in the window
    trajectories: int  # learned from
    groups: int  # sets of trajectories that are compared, or imitated together
    tokens: int  # sampled ones
    fraction: float  # trajectories per task
    dropped: dict[str, int]  # `DropReason` -> tasks
    staleness: dict[str, int]  # releases -> trajectories


def summarize(tasks: int, kept: Collection[tuple[ScoredTask, str]], dropped: Iterable[DropReason]) -> DataSummary:
    """Summarize the data; `kept` pairs each task with its group. Raises InvalidError with advice where it is
    empty.
    """
    reasons = Counter(dropped)
    if not kept:
        raise InvalidError(_explain(tasks, reasons))
    staleness = Counter(task.staleness for task, _ in kept)
    return DataSummary(
        tasks=tasks,
        trajectories=len(kept),
        groups=len({group for _, group in kept}),
        tokens=sum(task.trajectory.generated_tokens for task, _ in kept),
        fraction=len(kept) / tasks,
        dropped={reason.value: reasons[reason] for reason in DropReason if reasons[reason]},
        staleness={str(releases): staleness[releases] for releases in sorted(staleness)},
    )


def _explain(tasks: int, reasons: Counter[DropReason]) -> str:
    if not tasks:
        return "nothing to learn from: no task ended in the window; submit tasks, or widen `since` and `until`"
    if reasons[DropReason.UNSCORED] == tasks:
        return f"no scored tasks in the window, of {tasks} that ended: {ADVICE[DropReason.UNSCORED]}"
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"nothing to learn from in {tasks} tasks ({counts}): {ADVICE[reasons.most_common(1)[0][0]]}"
