"""The checks agree with the verifier, which sees the world itself, on every template that has one."""

from random import Random

import pytest

from app.agent.action import extract_code
from app.agent.prompts import Compact
from app.apis.calls.gateway import Gateway
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.tasks.verification import score
from tests.bench.traffic import can_check, check_of
from tests.support.office_instructions import asked_by
from trainer.worlds.office.apps import PEOPLE
from trainer.worlds.office.environment import OfficeEnvironment, OfficeWorld
from trainer.worlds.office.expert import ExpertScript
from trainer.worlds.office.scenarios import TEMPLATES, Template, place_at, scenario, templates_of

_ENVIRONMENT = OfficeEnvironment()


async def play(sandbox: ForkedSandbox, world: OfficeWorld, instruction: str) -> Json:
    """The expert's work in this world, and its answer."""
    gateway = Gateway(world.catalog, world.client, variables=world.task.variables)
    expert = ExpertScript(world.site, *asked_by(instruction), rng=Random(0))
    session = await sandbox.open(gateway.names(), gateway, SessionLimits(), now=world.now)
    seen: list[str] = []
    while not gateway.completed:
        observation = await session.run(extract_code(expert.next_turn(seen)) or "")
        seen.append(Compact().observation(observation))
    await session.close()
    return gateway.answer


async def checked(sandbox: ForkedSandbox, world: OfficeWorld, answer: Json) -> float:
    gateway = Gateway(world.catalog, world.client, variables=world.task.variables, read_only=True)
    code = check_of(place_at(world.task))
    return await score(code, answer, sandbox=sandbox, gateway=gateway, limits=SessionLimits(), now=world.now)


def some() -> list[Template]:
    """One of each verb that can be checked."""
    found = {template.verb: template for template in TEMPLATES if can_check(template)}
    return list(found.values())


@pytest.mark.parametrize("template", some(), ids=lambda template: template.name)
async def test_a_solved_task_scores_one_and_an_untouched_one_zero(
    template: Template, sandbox: ForkedSandbox
) -> None:
    given = scenario(template, seed=3, site=5)
    async with _ENVIRONMENT.open(given, given.tasks[0]) as world:
        assert await checked(sandbox, world, None) == 0
        answer = await play(sandbox, world, world.task.instruction)
        assert await checked(sandbox, world, answer) == 1
        assert await checked(sandbox, world, "12345") == 0


async def test_removing_another_item_as_well_scores_zero(sandbox: ForkedSandbox) -> None:
    template = Template("mail", "act2", "person")
    given = scenario(template, seed=3, site=5)
    async with _ENVIRONMENT.open(given, given.tasks[0]) as world:
        await play(sandbox, world, world.task.instruction)
        assert await checked(sandbox, world, None) == 1
        another = next(name for name in PEOPLE if name not in world.task.instruction)
        await play(sandbox, world, f"delete all mails from {another}")
        assert await checked(sandbox, world, None) == 0


async def test_a_check_retries_busy_services(sandbox: ForkedSandbox) -> None:
    given = scenario(Template("mail", "act2", "person"), seed=3, site=5)
    async with OfficeEnvironment(busy=0.3).open(given, given.tasks[0]) as world:
        assert await checked(sandbox, world, None) == 0


def test_marks_cannot_be_checked_and_half_of_the_held_out_templates_can() -> None:
    assert not any(can_check(each) for each in TEMPLATES if each.app == "music" and each.role)
    assert sum(map(can_check, templates_of("test"))) == 20
