"""The API gym as an environment: generated worlds of apps that no policy knows, and tasks in plain English."""

from functools import lru_cache
from typing import Literal, TypeAlias

from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.records import Stop, Trajectory
from trainer.environment import Split, Verdict
from trainer.worlds.generated.final_state import verify_state
from trainer.worlds.generated.generated_environment import BASE, GeneratedEnvironment
from trainer.worlds.generated.gym_documents import SUPERVISOR, document_of, supervisor_document
from trainer.worlds.generated.gym_plans import AXES, Axis, ScenarioKey, ScenarioPlan, place_in, plan_of
from trainer.worlds.generated.gym_services import respond
from trainer.worlds.generated.gym_worlds import GymState
from trainer.worlds.generated.instructions import instruction_of

HeldOut: TypeAlias = Literal["all", "domains", "shapes", "compositions", "phrasings"]


def load_environment(*, held_out: HeldOut = "all") -> "GymEnvironment":
    """The plug-in `gym`. Options as in `GymEnvironment`."""
    return GymEnvironment(held_out)


class GymEnvironment(GeneratedEnvironment[Axis, ScenarioPlan, GymState]):
    """Scenarios of validation and test hold one thing out of training: the words (`domains`), how the APIs work
    (`shapes`), what is asked (`compositions`), or how it is worded (`phrasings`); `all` are these by turns.
    """

    def __init__(self, held_out: HeldOut = "all") -> None:
        super().__init__("gym", AXES if held_out == "all" else (held_out,), GymState, respond)

    def plan(self, split: Split, axis: Axis, seed: int) -> ScenarioPlan:
        return plan_of(ScenarioKey(split, axis, seed))

    def place(self, world: str) -> tuple[ScenarioPlan, int]:
        key, index = place_in(world)
        return plan_of(key), index

    def instruction(self, plan: ScenarioPlan, index: int) -> str:
        return instruction_of(plan, index)

    def catalog(self, plan: ScenarioPlan) -> Catalog:
        return catalog_in(plan.key)

    def verify(self, state: GymState, trajectory: Trajectory) -> Verdict:
        return verify_state(state, trajectory.answer, completed=trajectory.stop is Stop.COMPLETED)


@lru_cache(maxsize=512)
def catalog_in(key: ScenarioKey) -> Catalog:
    """The apps of a scenario, parsed from the OpenAPI documents that its services stand for."""
    plan = plan_of(key)
    documents = {api.name: document_of(api, BASE) for api in plan.apis}
    documents[SUPERVISOR] = supervisor_document([api.name for api in plan.apis], BASE)
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})
