"""Programs executed in worlds of the gym: the real services, gateway and sandbox."""

from random import Random

import msgspec

from app.agent.prompts import Compact
from app.apis.calls.gateway import Gateway
from app.base.values import Json, Policy, Stop, Task, Trajectory
from app.sandbox.protocol import Sandbox, SessionLimits
from trainer.environment import Scenario, Verdict
from trainer.lessons.experts import Program
from trainer.worlds.generated.gym import ANSWERED, GymEnvironment, GymKey, GymPlan, plan_of
from trainer.worlds.generated.gym_expert import ProgramStyle, draw_style, write_program


class Execution(msgspec.Struct, frozen=True):
    """What became of a program."""

    verdict: Verdict
    observation: str
    calls: int


class Gym:
    """The environment and a sandbox."""

    def __init__(self, sandbox: Sandbox, environment: GymEnvironment | None = None) -> None:
        self.environment = environment or GymEnvironment()
        self._sandbox = sandbox

    async def execute(
        self, scenario: Scenario, task: Task, code: str, *, answers: bool | None = None
    ) -> Execution:
        """Run the code in a new world, then complete the task with its `result` if the task asks for one."""
        async with self.environment.open(scenario, task) as world:
            gateway = Gateway(world.catalog, world.client, variables=world.task.variables)
            session = await self._sandbox.open(gateway.names(), gateway, SessionLimits(), now=world.now)
            asked = world.plan.form.goal in ANSWERED if answers is None else answers
            end = f"apis.supervisor.complete_task({'answer=result' if asked else ''})"
            observation = await session.run(f"{code}\n{end}")
            await session.close()
            trajectory = finished(world.task, gateway.answer, completed=gateway.completed)
            verdict = await world.verify(trajectory)
            return Execution(verdict, Compact().observation(observation), len(gateway.take_calls()))


def finished(task: Task, answer: Json = None, *, completed: bool = True) -> Trajectory:
    """A trajectory without turns."""
    stop = Stop.COMPLETED if completed else Stop.TURN_LIMIT
    return Trajectory(task=task, policy=Policy(), profile="compact", turns=(), stop=stop, answer=answer)


def plan(scenario: Scenario) -> GymPlan:
    return plan_of(GymKey.place_in(scenario.tasks[0].variables["world"])[0])


def program(scenario: Scenario, style: ProgramStyle | None = None) -> Program:
    """The expert's, in a style drawn for the scenario unless one is given."""
    return write_program(plan(scenario).ask, style or draw_style(Random(f"style {scenario.id}")))


def values(scenario: Scenario, index: int) -> tuple[str, ...]:
    """The values of a task, as Python."""
    return tuple(repr(value) for value in plan(scenario).values[index].values())
