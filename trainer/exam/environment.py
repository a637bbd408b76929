"""The plug-in `exam`: a named set of a project's own tasks, without those that doing nothing solves.

These cannot tell a good policy from a bad one. Whoever completes such a task at once passes, so a policy would
gain by ending its tasks sooner, or be promoted for using fewer tokens. A check that is always true is of this
kind.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import Random
from typing import Annotated, Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec

from app.base.errors import InvalidError
from app.base.values import GOOD, Json, Policy, Stop, Task, Trajectory
from app.projects.kinds import OWN_WORK, SET, kind_of, sets_of
from trainer.environment import Scenario, Split, Verdict, World

Ground: TypeAlias = Literal["recorded", "staging", "live"]
"""What trials run on: the recorded calls of the tasks, other servers of the APIs, or the APIs, only to be read."""
_ANSWERS: tuple[Json, ...] = (None, "?")  # the second is right for nothing, but a check may accept any answer


class ExamItem(msgspec.Struct, frozen=True, kw_only=True):
    """A task that can be tried, and what is known of the time when it was served."""

    task: Task
    placed: str | None = None  # the kind of one without a scenario, where the project tells them apart
    check: str | None
    record: Trajectory | None = None
    score: float | None = None
    now: datetime

    @property
    def kind(self) -> str:
        return self.placed or kind_of(self.task.instruction, self.task.scenario)


def verdict_of(score: float) -> Verdict:
    """Of a task's check, which gives a score in [0, 1]. What succeeds when it is served succeeds here.

    >>> verdict_of(0.8).success, verdict_of(0.4).success, verdict_of(0.8).fraction
    (True, False, 0.8)
    """
    return Verdict(round(100 * score), 100, needed=GOOD)


class Trials(Protocol):
    """Opens worlds for tasks of an exam."""

    def can_judge(self, item: ExamItem) -> bool:
        """Whether a trial of it can be told to be right or wrong."""
        ...

    def open(self, item: ExamItem) -> AbstractAsyncContextManager[World]: ...


Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{8,64})?(?!\n)$")]
"""The sha256 of a version of an exam, or how that begins; empty for the newest version."""


def load_environment(*, name: str = OWN_WORK, on: Ground = "recorded", digest: Digest = "") -> "ExamChoice":
    """The plug-in: an exam of the project that a run belongs to, in its newest version or in the one named."""
    return ExamChoice(name, on, digest)


class ExamChoice(msgspec.Struct, frozen=True):
    """Which exam, and what it is tried on. A run opens it; by itself it is an environment without tasks."""

    name: str
    on: Ground
    digest: Digest = ""

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:  # noqa: ARG002
        raise InvalidError("an exam belongs to a project: name it in a training run of that project")

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]:
        raise AssertionError(f"{task} of {scenario} came from elsewhere")


class ExamEnvironment:
    """Implements `Environment`. Validation and test draw from the exam's tasks, training from others.

    A trial of each can be judged.
    """

    def __init__(self, exam: Sequence[ExamItem], training: Sequence[ExamItem], trials: Trials) -> None:
        self._trials = trials
        self._items = {item.task.id: item for item in (*exam, *training)}
        self._examined = exam_scenarios(exam)
        self._trained = exam_scenarios(training)

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """At most `count`: an exam has no more than it has."""
        found = list(self._trained if split == "train" else self._examined)
        Random(f"exam {seed}").shuffle(found)
        return found[:count]

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]:
        del scenario  # the task determines everything
        return self._trials.open(self._items[task.id])


def exam_scenarios(items: Sequence[ExamItem]) -> list[Scenario]:
    """Up to three tasks of one kind each."""
    kinds: dict[str, list[Task]] = defaultdict(list)
    for item in items:
        kinds[item.kind].append(item.task)
    return [
        Scenario(
            f"{kind} ({number + 1})" if number else kind,
            kind,
            0,
            tuple(tasks[number * SET : (number + 1) * SET]),
            kind,
        )
        for kind, tasks in kinds.items()
        for number in range(sets_of(len(tasks)))
    ]


async def solved_idly(
    trials: Trials, items: Sequence[ExamItem], report: Callable[[int, int], object]
) -> set[UUID]:
    """The ids of tasks that are judged as solved if all that a trial does is to complete them.

    `report` is called with how many of them are done, and their number. Raises StagingError if the APIs cannot be
    reset.
    """
    found = set[UUID]()
    for done, item in enumerate(items, 1):
        if await _solved_idly(trials, item):
            found.add(item.task.id)
        report(done, len(items))
    return found


async def _solved_idly(trials: Trials, item: ExamItem) -> bool:
    async with trials.open(item) as world:
        for answer in _ANSWERS:
            idle = Trajectory(
                task=item.task, policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED, answer=answer
            )
            verdict = await world.verify(idle)
            if verdict.known and verdict.success:
                return True
    return False
