"""Programs executed in worlds of practice: the real double, gateway and sandbox."""

from app.agent.prompts import Compact
from app.base.values import Json, Policy, Stop, Task, Trajectory
from app.sandbox.protocol import Sandbox, SessionLimits
from trainer.environment import Scenario, Verdict
from trainer.practice.environments import Plan, PracticeEnvironment
from trainer.practice.programs import write_program


def code_of(plan: Plan, index: int, other: Plan | None = None) -> str:
    """The program of a plan, or of another one, with the values of a task."""
    program = write_program((other or plan).writing)
    values = tuple(map(repr, plan.values[index].values()))
    return f"{program.function}\n\n{program.call(values)}"


async def execute(
    sandbox: Sandbox, environment: PracticeEnvironment, scenario: Scenario, task: Task, code: str
) -> tuple[Verdict, str]:
    """Run the code in a new world, then complete the task, with its `result` if the task asks for one."""
    async with environment.open(scenario, task) as world:
        gateway = world.open_gateway(300)
        session = await sandbox.open(gateway.names(), gateway.answer_call, SessionLimits(), now=world.now)
        end = f"apis.supervisor.complete_task({'answer=result' if world.plan.form.is_answered else ''})"
        observation = await session.run(f"{code}\n{end}")
        await session.close()
        found = finished(world.task, gateway.answer, completed=gateway.completed)
        return await world.verify(found), Compact().observation(observation)


def finished(task: Task, answer: Json = None, *, completed: bool = True) -> Trajectory:
    """A trajectory without turns."""
    stop = Stop.COMPLETED if completed else Stop.TURN_LIMIT
    return Trajectory(task=task, policy=Policy(), profile="compact", turns=(), stop=stop, answer=answer)
