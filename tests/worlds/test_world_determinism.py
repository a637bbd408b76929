"""The same seed gives the same generated worlds in every process: names, documents, records and instructions."""

import hashlib
import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest

from trainer.environment import Split
from trainer.worlds.generated.crud import CrudEnvironment
from trainer.worlds.generated.documents import document_of
from trainer.worlds.generated.gym import GymEnvironment

FINGERPRINTS = {
    "gym": "2625c4569779fac09844a04d1715d0d6945ca214a9334c8a4e97576a391a9707",
    "crud": "2dcbb6ba937da2647f74aab6d60c0151b696e29dc774b5d56294f6d5a4f8313d",
}


SPLITS: tuple[Split, ...] = get_args(Split)
EXAMS: tuple[Split, ...] = ("validation", "test")


def fingerprint(name: str, splits: tuple[Split, ...]) -> str:
    """Of all that seeds determine, in 40 scenarios of each split."""
    environment: Any = {"gym": GymEnvironment, "crud": CrudEnvironment}[name]()
    digest = hashlib.sha256()
    for split in splits:
        for scenario in environment.scenarios(split, 40, seed=9):
            tasks = [(each.id, each.instruction, each.variables) for each in scenario.tasks]
            digest.update(msgspec.json.encode(tasks))
            plan, _ = environment.place(scenario.tasks[0].variables["world"])
            for index in range(3):
                digest.update(msgspec.json.encode(records_of(name, plan, index)))
            for api in plan.apis:
                digest.update(msgspec.json.encode(document_of(api, f"http://{name}")))
    return digest.hexdigest()


def records_of(name: str, plan: Any, index: int) -> Any:
    records = plan.initial_records(index)
    if name == "crud":
        return [*records.values()]
    fields = ("id", "person", "label", "number", "date", "state")
    return {
        app: [{field: getattr(each, field) for field in fields} for each in listed]
        for (app, _), listed in records.items()
    }


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_the_exams_are_those_whose_figures_were_published(name: str) -> None:
    """A change of their words or of the generator changes every exam: earlier figures no longer compare."""
    assert fingerprint(name, EXAMS) == FINGERPRINTS[name]


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_another_process_with_another_hash_seed_makes_the_same_worlds(name: str) -> None:
    code = f"from tests.worlds.test_world_determinism import fingerprint; print(fingerprint({name!r}, {SPLITS!r}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {fingerprint(name, SPLITS)}
