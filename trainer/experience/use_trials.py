"""What offering skills is worth in each scenario, where chance decided which tasks did without.

Which tasks use a skill is their own choice: those that do may be the easy ones. From a share of tasks all skills
are withheld, whatever they are like, so a difference to them is the effect of the skills.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.db.skill_evidence import ENOUGH_WITHHELD, Outcomes
from app.db.skill_value import compared_tasks, withheld_among
from app.score_source import GOOD
from app.skills.standing import is_worse
from trainer.experience.scenario_inference import labelled
from trainer.experience.window import Window

_LATEST = 1_000  # tasks of a scenario that are compared


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
            found[scenario] = _difference(offered, withheld)
    return found


def _outcomes(tasks: Sequence[TrialTask]) -> Outcomes:
    good = sum(task.score >= GOOD for task in tasks)
    return Outcomes(good, len(tasks) - good)


def _difference(offered: Outcomes, withheld: Outcomes) -> float:
    assert offered.rate is not None
    assert withheld.rate is not None
    difference = offered.rate - withheld.rate
    return difference if is_worse(offered, withheld) else max(0.0, difference)
