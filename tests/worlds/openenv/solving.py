"""Programs that solve the tasks that a server of ours lists or draws, without knowing it from within."""

from typing import Any

from trainer.environment import Environment, Split
from trainer.worlds.generated.gym import GymEnvironment
from trainer.worlds.generated.gym_expert import ProgramStyle, write_program
from trainer.worlds.office import solution
from trainer.worlds.office.apps import Site
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.scenarios import place_at
from trainer.worlds.openenv.sessions import PlacedTask, ResetArguments, ServedTasks


def drawn(environment: Environment, seed: int, split: Split = "train") -> PlacedTask:
    """What a reset with this seed starts."""
    return ServedTasks(environment, 1).find(ResetArguments(seed=seed, split=split))


def office_code(placed: PlacedTask) -> str:
    """It leaves the answer in `result`."""
    place = place_at(placed.task)
    return solution.inline(place.kind, Site.of(place.site), place.value)


def gym_code(placed: PlacedTask) -> str:
    plan, index = GymEnvironment().place(placed.task.variables["world"])
    values: dict[str, Any] = plan.values[index]
    return write_program(plan.ask, ProgramStyle()).inline(tuple(map(repr, values.values())))


def code_of(environment: Environment, placed: PlacedTask) -> str:
    return office_code(placed) if isinstance(environment, OfficeEnvironment) else gym_code(placed)


def completion(environment: Environment, placed: PlacedTask) -> str:
    """With the answer if the task asks for one."""
    if isinstance(environment, OfficeEnvironment):
        is_answered = not place_at(placed.task).kind.role
    else:
        plan, _ = GymEnvironment().place(placed.task.variables["world"])
        is_answered = plan.form.is_answered
    return f"apis.supervisor.complete_task({'answer=result' if is_answered else ''})"
