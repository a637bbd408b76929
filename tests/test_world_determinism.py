"""The same seed gives the same generated worlds in every process: names, documents, records and instructions."""

import hashlib
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from trainer.environments.crud import crud_documents
from trainer.environments.crud.crud_environment import CrudEnvironment
from trainer.environments.crud.crud_records import initial_records
from trainer.environments.gym import gym_documents
from trainer.environments.gym.gym_environment import GymEnvironment
from trainer.environments.gym.gym_items import initial_items

FINGERPRINTS = {
    "gym": "5a83ad40eccc2d1f6f8c9f7297f883923fb9a00db843c584f359154d84fcfad9",
    "crud": "556213ce367ef47c13d152594ea7779ef89e6673ac07e1a2008e13f0558a7080",
}


def fingerprint(name: str) -> str:
    """Of all that seeds determine, in 40 scenarios of each split."""
    environment: Any = {"gym": GymEnvironment, "crud": CrudEnvironment}[name]()
    document_of: Any = {"gym": gym_documents, "crud": crud_documents}[name].document_of
    digest = hashlib.sha256()
    for split in ("train", "validation", "test"):
        for scenario in environment.scenarios(split, 40, seed=9):
            tasks = [(each.id, each.instruction, each.variables) for each in scenario.tasks]
            digest.update(msgspec.json.encode(tasks))
            plan, _ = environment.place(scenario.tasks[0].variables["world"])
            for index in range(3):
                state = initial_items(plan, index) if name == "gym" else [*initial_records(plan, index).values()]
                digest.update(msgspec.json.encode(state))
            for api in plan.apis:
                digest.update(msgspec.json.encode(document_of(api, f"http://{name}")))
    return digest.hexdigest()


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_the_exams_are_those_whose_figures_were_published(name: str) -> None:
    """A change of the words or of the generator changes every exam: earlier figures no longer compare."""
    assert fingerprint(name) == FINGERPRINTS[name]


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_another_process_with_another_hash_seed_makes_the_same_worlds(name: str) -> None:
    code = f"from tests.test_world_determinism import fingerprint; print(fingerprint({name!r}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {fingerprint(name)}
