"""Apps that keep records as an environment: tasks to create, read, change and delete them, in plain English."""

from functools import lru_cache
from typing import Literal, TypeAlias

from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.records import Stop, Trajectory
from trainer.environment import Split, Verdict
from trainer.worlds.generated.crud_documents import document_of
from trainer.worlds.generated.crud_phrases import instruction_of
from trainer.worlds.generated.crud_plans import CRUD_AXES, Axis, CrudKey, CrudPlan, place_in, plan_of
from trainer.worlds.generated.crud_records import verify_records
from trainer.worlds.generated.crud_services import CrudState, respond
from trainer.worlds.generated.generated_environment import BASE, GeneratedEnvironment
from trainer.worlds.generated.gym_documents import SUPERVISOR, supervisor_document

HeldOutAxis: TypeAlias = Literal["all", "domains", "shapes", "phrasings"]


def load_environment(*, held_out: HeldOutAxis = "all") -> "CrudEnvironment":
    """The plug-in `crud`. Options as in `CrudEnvironment`."""
    return CrudEnvironment(held_out)


class CrudEnvironment(GeneratedEnvironment[Axis, CrudPlan, CrudState]):
    """Scenarios of validation and test hold one thing out of training: the words (`domains`), how the APIs work
    (`shapes`), or how tasks are worded (`phrasings`); `all` are these by turns.
    """

    def __init__(self, held_out: HeldOutAxis = "all") -> None:
        super().__init__("crud", CRUD_AXES if held_out == "all" else (held_out,), CrudState, respond)

    def plan(self, split: Split, axis: Axis, seed: int) -> CrudPlan:
        return plan_of(CrudKey(split, axis, seed))

    def place(self, world: str) -> tuple[CrudPlan, int]:
        key, index = place_in(world)
        return plan_of(key), index

    def instruction(self, plan: CrudPlan, index: int) -> str:
        return instruction_of(plan, index)

    def catalog(self, plan: CrudPlan) -> Catalog:
        return catalog_in(plan.key)

    def verify(self, state: CrudState, trajectory: Trajectory) -> Verdict:
        completed = trajectory.stop is Stop.COMPLETED
        return verify_records(state.plan, state.index, state.records, trajectory.answer, completed=completed)


@lru_cache(maxsize=512)
def catalog_in(key: CrudKey) -> Catalog:
    """The apps of a scenario, parsed from the OpenAPI documents that its services stand for."""
    plan = plan_of(key)
    documents = {api.name: document_of(api, BASE) for api in plan.apis}
    if any(api.shape.auth == "key" for api in plan.apis):
        documents[SUPERVISOR] = supervisor_document([api.name for api in plan.apis], BASE)
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})
