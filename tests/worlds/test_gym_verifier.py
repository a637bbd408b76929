"""Wrong and lazy programs fail: each usual mistake, made in the expert's own program, is rejected."""

import re
from collections.abc import Callable, Iterator

import msgspec
import pytest

from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.gym_rollouts import Gym, finished, plan, program, values
from trainer.environment import Scenario
from trainer.worlds.generated.gym import ANSWERED, WRITING, GymEnvironment
from trainer.worlds.generated.gym_expert import ProgramStyle

pytestmark = pytest.mark.slow  # hundreds of whole tasks of the practice world

RANKED = ("peak", "who", "act_top")  # some of the wrong rows may have the highest number's owner right


@pytest.fixture(scope="module")
def gym(sandbox: ForkedSandbox) -> Gym:
    return Gym(sandbox)


class Mistake(msgspec.Struct, frozen=True):
    """A change of the expert's program; where the program has no place for it, nothing changes."""

    apply: Callable[[str], str]
    ranked: bool = False  # whether it shows in tasks about the highest number, too
    least: int = 10  # programs that can have it


def stop_after_a_page(code: str) -> str:
    at = max(code.rfind("page += 1"), code.rfind("offset += len(rows)"), code.rfind("if not cursor:"))
    if at < 0:
        return code
    line, _, rest = code[at:].partition("\n")
    return code[:at] + ("break\n" if line != "if not cursor:" else "if True:\n") + rest


def drop_a_condition(code: str) -> str:
    return re.sub(r"( +if )(row\[.*) and (row\[.*):\n( +chosen)", r"\1\3:\n\4", code)


MISTAKES = {
    "reads one page": Mistake(stop_after_a_page, least=30),
    "includes the upper limit": Mistake(lambda code: re.sub(r" < (\w+)", r" <= \1", code)),
    "includes the lower limit": Mistake(lambda code: re.sub(r"\] > (\w+)", r"] >= \1", code)),
    "drops one of two conditions": Mistake(drop_a_condition),
    "takes every row": Mistake(
        lambda code: re.sub(r" if .*:\n( +chosen)", r" if True:\n\1", code), ranked=True, least=60
    ),
    "takes everybody for a member": Mistake(lambda code: code.replace("in people", "is not None")),
    "ignores that the service was busy": Mistake(
        lambda code: re.sub(r"while not (.*)\[.*?\]:\n +time.sleep\(1\)", r"\1", code), ranked=True
    ),
    "changes only the first": Mistake(
        lambda code: code.replace("for row in chosen:", "for row in chosen[:1]:").replace(
            '] for row in chosen]', '] for row in chosen[:1]]'
        )
    ),
}  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    yield from GymEnvironment().scenarios("train", 180, seed=21)
    yield from GymEnvironment().scenarios("test", 55, seed=21)


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_usual_mistake_is_rejected(gym: Gym, name: str) -> None:
    mistake, made = MISTAKES[name], 0
    for number, scenario in enumerate(scenarios()):
        expert, goal, index = program(scenario, ProgramStyle()), plan(scenario).form.goal, number % 3
        wrong = mistake.apply(expert.function)
        if wrong == expert.function or (goal in RANKED and not mistake.ranked):
            continue
        made += 1
        code = f"{wrong}\n\n{expert.call(values(scenario, index))}"
        done = await gym.execute(scenario, scenario.tasks[index], code)
        assert not done.verdict.success, (scenario.id, scenario.tasks[index].instruction, code)
    assert made >= mistake.least


async def test_doing_nothing_and_guessing_are_rejected(gym: Gym) -> None:
    for scenario in scenarios():
        for index, task in enumerate(scenario.tasks):
            async with gym.environment.open(scenario, task) as world:
                right = world.plan.expected_answer(index)
                if world.plan.form.goal in WRITING:  # also with the right answer: nothing was changed
                    assert not (await world.verify(finished(world.task, right))).success
                if world.plan.form.goal in ANSWERED:
                    for answer in (None, "", True, f"{right}0", [right]):
                        assert not (await world.verify(finished(world.task, answer))).success
                    if isinstance(right, int):
                        assert not (await world.verify(finished(world.task, right + 1))).success
                assert not (await world.verify(finished(world.task, right, completed=False))).success


async def test_a_change_that_nobody_asked_for_is_rejected_beside_the_right_ones(gym: Gym) -> None:
    """Also in another app, and also if the answer is right."""
    for scenario in scenarios():
        chosen = plan(scenario)
        expert, other = program(scenario), chosen.others[0] if chosen.others else None
        if other is None or other.shape.write != "path" or other.shape.auth != "open":
            continue
        verb = other.domain.verbs[0]
        act = f"apis.{other.name}.{other.route('act', verb=verb).python}"
        async with gym.environment.open(scenario, scenario.tasks[0]) as world:
            identity = world.state.records[other.name, 0][0].id
        harm = f"{act}(id={identity!r})\n" * 2  # the first one may find the service busy
        code = f"{expert.function}\n\n{expert.call(values(scenario, 0))}\n"
        assert (await gym.execute(scenario, scenario.tasks[0], code)).verdict.success
        done = await gym.execute(scenario, scenario.tasks[0], code + harm)
        assert [each for each in done.verdict.failures if each.startswith("changed without being asked")]


async def test_an_answer_where_none_is_asked_for_is_rejected(gym: Gym) -> None:
    for scenario in scenarios():
        if plan(scenario).form.goal not in ANSWERED:
            expert = program(scenario)
            code = f"{expert.function}\n\n{expert.call(values(scenario, 0))}"
            done = await gym.execute(scenario, scenario.tasks[0], code, answers=True)
            assert done.verdict.failures == ("an answer was given where none was expected",)
