"""Worlds of other packages as these are: installed from the package index, and solved by their own solutions."""

import json
import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.agent.prompts import Brief
from app.base.settings import Settings
from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.scripted_engine import byte_tokenizer
from tests.support.tiny_model import make_model_dir
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.rollouts.episode import ExpertContext
from trainer.run import train
from trainer.worker.launcher import installed_environments
from trainer.worlds.external import packages
from trainer.worlds.external.check import check
from trainer.worlds.external.expert import ProgramsExpert
from trainer.worlds.external.packages import PACKAGES, load_alfworld

_REFEREE = Path(__file__).with_name("alfworld_referee.py")
_HOSTS = Path(packages.__file__).parent / "hosts"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In which they are installed."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("worlds")
        patch.setenv("SAGE_DATA_DIR", str(directory))
        for name in ("alfworld", "tau2"):
            PACKAGES[name].install(print)
        yield directory


@pytest.mark.parametrize(
    ("environment", "scenarios", "nothing"),
    [
        ("alfworld", 12, 0),
        ("tau2", 12, 0),
        ("tau2?domain=retail", 2, 2),  # those ask for no change
        ("tau2?domain=airline", 1, 3),
    ],
)
async def test_a_world_is_solved_by_its_reference_and_not_by_chance(
    environment: str, scenarios: int, nothing: int
) -> None:
    found = (await check(environment, ["test"], scenarios, report=False))["test"]
    assert found.tasks >= scenarios
    assert found.reference == found.tasks
    assert found.nothing <= nothing
    assert found.random <= nothing


def test_workers_report_the_worlds_that_are_installed() -> None:
    names = {each.name for each in installed_environments()}
    assert {"alfworld", "tau2"} <= names
    assert "workbench" not in names


async def test_a_policy_is_trained_by_rollouts_in_a_world_of_another_package(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    """One with random weights: the run takes its course, and nothing is learned."""
    settings = Settings(
        model=str(make_model_dir(tmp_path / "tiny", spread=0.05)),
        prompt_profile="compact",
        retrieval="query_ngram",
        data_dir=tmp_path,
        database_url=database_url,
        engine_device="cpu",
        max_turns=1,
        max_turn_tokens=16,
    )
    shop, recorder = await TrainingProject.open(committed, settings), ProgressRecorder()
    job = await shop.job(kind="rollout", environment="alfworld", steps=1, pairs=2, group=2, gate_scenarios=0)
    await train(job, recorder)
    assert recorder.metrics[1]["outcome"] == -1  # it writes no code


async def test_programs_demonstrate_chores_and_repair_what_they_forgot(tmp_path: Path) -> None:
    environment = load_alfworld()
    async with ForkedSandbox() as sandbox:
        context = ExpertContext(
            environment=environment, tokenizer=byte_tokenizer(tmp_path), profile=Brief(), sandbox=sandbox
        )
        expert = ProgramsExpert(context, environment, mistake=1.0, withheld=0.0)
        played = [await expert.play(each, 0.0) for each in environment.scenarios("train", 8, 1)]
    episodes = [episode for chain in played for episode in chain]
    assert all(episode.verdict.success for episode in episodes)
    turns = [[len(episode.trajectory.turns) for episode in chain] for chain in played]
    assert {chain[0] for chain in turns} == {3, 4}, "some mistakes show, and are repaired"
    assert all(len(chain) == 3 and chain[1:] == [2, 2] for chain in turns), "the skill is used"


def test_a_referee_sees_the_same_actions_and_goals_in_houses(tmp_path: Path) -> None:
    """TextWorld plays them by ALFWorld's own domain. `alfworld_referee.py 100 40` plays a hundred, in minutes."""
    venv.create(tmp_path / "referee", with_pip=True)
    python = tmp_path / "referee" / "bin" / "python"
    requirements = [_REFEREE.with_suffix(".txt"), PACKAGES["alfworld"].requirements]
    files = [argument for each in requirements for argument in ("-r", str(each))]
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *files], check=True)
    played = subprocess.run(
        [python, _REFEREE, "4", "20"],
        env=os.environ | {"PYTHONPATH": str(_HOSTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(played.stdout) == {"games": 4, "reached": 4, "differences": []}
