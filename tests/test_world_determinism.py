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
    "gym": "6031ab547ca75a593554e9e0ed2f520566d8e6fc594f572e129a3233b9719c7b",
    "crud": "b07d192472b3a6afc1369b6df4dce7f4d5aea2d51182bafc18e18eeb7203d9da",
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
