"""The same seed gives the same gym in every process: names, documents, items and instructions."""

import hashlib
import subprocess
import sys

import msgspec

from trainer.environments.gym.gym_documents import document_of
from trainer.environments.gym.gym_environment import GymEnvironment
from trainer.environments.gym.gym_items import initial_items
from trainer.environments.gym.gym_plans import place_in, plan_of

FINGERPRINT = "5a83ad40eccc2d1f6f8c9f7297f883923fb9a00db843c584f359154d84fcfad9"


def fingerprint() -> str:
    """Of all that seeds determine, in 40 scenarios of each split."""
    digest = hashlib.sha256()
    for split in ("train", "validation", "test"):
        for scenario in GymEnvironment().scenarios(split, 40, seed=9):
            tasks = [(each.id, each.instruction, each.variables) for each in scenario.tasks]
            digest.update(msgspec.json.encode(tasks))
            plan = plan_of(place_in(scenario.tasks[0].variables["world"])[0])
            for index in range(3):
                digest.update(msgspec.json.encode(initial_items(plan, index)))
            for api in plan.apis:
                digest.update(msgspec.json.encode(document_of(api, "http://gym")))
    return digest.hexdigest()


def test_the_gym_is_the_same_as_when_its_exams_were_published() -> None:
    """A change of the words or of the generator changes every exam: earlier figures no longer compare."""
    assert fingerprint() == FINGERPRINT


def test_another_process_with_another_hash_seed_makes_the_same_worlds() -> None:
    code = "from tests.test_gym_determinism import fingerprint; print(fingerprint())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {fingerprint()}
