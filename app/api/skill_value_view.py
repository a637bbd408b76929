"""What skills are worth: tasks with them compared with tasks from which they were withheld by chance."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Self, TypedDict

import msgspec

from app.db.results import TaskSums
from app.db.skill_value import ComparedTask
from app.release import one_look
from app.release.confidence_sequence import Interval, difference

_ALPHA = 0.05
_SCENARIOS = 100


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
            score=one_look.difference(offered.score, withheld.score, most=1.0),
            turns=one_look.difference(offered.turns, withheld.turns),
            tokens=one_look.difference(offered.tokens, withheld.tokens),
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


class _Compared(TypedDict):
    offered: ScoredTasks
    withheld: ScoredTasks
    difference: Interval | None
    one_look: SkillEffect


def _compared(tasks: Sequence[ComparedTask]) -> _Compared:
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
        score=one_look.sums_of(task.score for task in tasks),
        turns=one_look.sums_of(task.turns for task in tasks if task.turns is not None),
        tokens=one_look.sums_of(task.tokens for task in tasks if task.tokens is not None),
    )
