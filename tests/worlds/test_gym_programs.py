"""Every task of the gym can be solved as its documents say, by one function for all tasks of a scenario."""

import pytest

from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.gym_rollouts import Gym, program, values
from trainer.environment import Split


@pytest.fixture(scope="module")
def gym(sandbox: ForkedSandbox) -> Gym:
    return Gym(sandbox)


async def check(gym: Gym, split: Split, count: int, seed: int) -> None:
    """The function on one task of each scenario, by turns; on another one the same without a function."""
    for number, scenario in enumerate(gym.environment.scenarios(split, count, seed)):
        expert, index, other = program(scenario), number % 3, (number + 1) % 3
        as_function = f"{expert.function}\n\n{expert.call(values(scenario, index))}"
        done = await gym.execute(scenario, scenario.tasks[index], as_function)
        assert done.verdict.success, (scenario.id, scenario.tasks[index].instruction, as_function, done)
        inline = expert.inline(values(scenario, other))
        done = await gym.execute(scenario, scenario.tasks[other], inline)
        assert done.verdict.success, (scenario.id, scenario.tasks[other].instruction, inline, done)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "count"), [("train", 60), ("validation", 40), ("test", 60)])
async def test_the_expert_solves_the_tasks_of_every_split(gym: Gym, split: Split, count: int) -> None:
    await check(gym, split, count, seed=5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
async def test_the_expert_solves_hundreds_of_tasks(gym: Gym, split: Split) -> None:
    await check(gym, split, 150, seed=6)
