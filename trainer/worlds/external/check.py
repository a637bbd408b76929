"""What is right about a world of others before anything is trained in it: its reference solutions solve all tasks,
and neither doing nothing nor calls at random do.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final

import msgspec
from tqdm import tqdm

from app.apis.catalog import Parameter
from app.base.errors import HostError, InvalidError
from app.base.values import Json, Policy, Stop, Task, Trajectory
from trainer.environment import Scenario, Split, open_environment
from trainer.worlds.external.environment import ExternalEnvironment, ExternalWorld
from trainer.worlds.external.processes import RefusedCallError

_CALLS: Final = 5  # at random
ALL: Final = 1_000_000  # scenarios
_VALUES: Final[Mapping[str, Sequence[Json]]] = {
    "integer": (0, 1, 2),
    "number": (0.5, 1.0),
    "boolean": (True, False),
    "array": ([],),
    "object": ({},),
}


class Checked(msgspec.Struct, kw_only=True):
    """How many tasks of a split were solved, by each."""

    tasks: int = 0
    reference: int = 0
    nothing: int = 0
    random: int = 0


async def check(
    name: str, splits: Sequence[Split], scenarios: int = ALL, *, report: bool = True
) -> dict[str, Checked]:
    """By at most so many scenarios of each split. Of several splits those without tasks are left out.

    Raises InvalidError for an environment whose tasks have no reference solutions.
    """
    environment = open_environment(name)
    if not isinstance(environment, ExternalEnvironment):
        raise InvalidError(f"{name} is no world of others: name one that `sage worlds list` shows")
    found: dict[str, Checked] = {}
    for split in [each for each in splits if each in environment.splits] or splits:
        row = found[split] = Checked()
        drawn = environment.scenarios(split, scenarios, 0)
        tasks = [(scenario, task) for scenario in drawn for task in scenario.tasks]
        for scenario, task in tqdm(tasks, desc=split, unit="task", disable=None if report else True):
            row.tasks += 1
            row.reference += await _succeeds(environment, scenario, task, _solve)
            row.nothing += await _succeeds(environment, scenario, task, _do_nothing)
            row.random += await _succeeds(environment, scenario, task, _call_at_random)
    return found


async def _succeeds(
    environment: ExternalEnvironment,
    scenario: Scenario,
    task: Task,
    attempt: Callable[[ExternalWorld], Awaitable[Json]],
) -> bool:
    async with environment.open(scenario, task) as world:
        answer = await attempt(world)
        done = Trajectory(task=task, policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED, answer=answer)
        return (await world.verify(done)).success


async def _solve(world: ExternalWorld) -> Json:
    with suppress(RefusedCallError):  # the package has no solution
        return await world.solve()
    return None


async def _do_nothing(world: ExternalWorld) -> Json:
    del world


async def _call_at_random(world: ExternalWorld) -> Json:
    """Operations of the world with values that fit their types, through the gateway."""
    rng = Random(world.task.instruction)
    gateway = world.open_gateway(_CALLS)
    operations = [each for app in world.catalog.apps.values() for each in app.operations.values()]
    answer: Json = None
    for operation in rng.choices(operations, k=_CALLS):
        given = {each.name: _drawn(each, rng) for each in operation.parameters if each.required}
        with suppress(HostError):  # refused
            answer = await gateway(operation.api, [], given)
    return answer


def _drawn(parameter: Parameter, rng: Random) -> Json:
    schema = parameter.schema
    return rng.choice(schema.get("enum") or _VALUES.get(schema.get("type", ""), ("", parameter.name)))
