"""AppWorld's data, which is not part of its package: what is said where it is missing, and that tasks in their
format are solved.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.apis.calls.gateway import Gateway
from app.base.errors import HostError, InvalidError
from app.base.values import Policy, Stop, Trajectory
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from trainer.rollouts.episode import EpisodeRunner
from trainer.worlds.external.check import Checked, check
from trainer.worlds.external.packages import PACKAGES, load_appworld

_MAKE_DATA = Path(__file__).with_name("appworld_data_host.py")
_PLUGIN = "trainer.worlds.external.packages:load_appworld"
_LOG_IN = """
accounts = {each["account_name"]: each["password"] for each in apis.supervisor.show_account_passwords()}
email = apis.supervisor.show_profile()["email"]
token = apis.venmo.login(username=email, password=PASSWORD)["access_token"]
print(email)
"""
_ADD_UP = """
page, paid = 0, 0
while found := apis.venmo.show_transactions(
    access_token=token, user_email="ben@example.com", min_amount=3.0, page_index=page
):
    page, paid = page + 1, paid + sum(each["amount"] for each in found)
print(page)
apis.supervisor.complete_task(answer=paid)
"""


def write_data(root: Path, version: str = "0.1.0") -> Path:
    """As much of it as can be seen without the package. One task in each split."""
    data = root / "data"
    for directory in ("api_docs/standard", "base_dbs", "datasets"):
        (data / directory).mkdir(parents=True)
    for name in ("train", "dev", "test_normal", "test_challenge"):
        (data / "datasets" / f"{name}.txt").write_text(f"{name}_1\n")
        (data / "tasks" / f"{name}_1" / "ground_truth").mkdir(parents=True)
        (data / "tasks" / f"{name}_1" / "ground_truth" / "evaluation.py").touch()
        (data / "tasks" / f"{name}_1" / "specs.json").write_text(f'{{"db_version": "{version}"}}')
    return data


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of data, beside an environment that looks like the package's."""
    monkeypatch.setenv("SAGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path / "root"))
    package = PACKAGES["appworld"]
    package.directory.mkdir(parents=True)
    (package.directory / "sage-requirements.txt").write_bytes(package.requirements.read_bytes())
    return tmp_path / "root"


def download(root: Path | str) -> str:
    return f"call `{PACKAGES['appworld'].directory}/bin/appworld download data --root {root}`"


def test_without_its_data_it_says_how_to_get_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match=f"^datasets/train.txt is missing.* in {root}/data: {download(root)}"):
        load_appworld()
    monkeypatch.delenv("APPWORLD_ROOT")
    with pytest.raises(InvalidError, match=f"{download('DIRECTORY')}, and set APPWORLD_ROOT"):
        load_appworld()


@pytest.mark.parametrize(
    "part",
    [
        "api_docs/standard",
        "base_dbs",
        "datasets/dev.txt",
        "tasks/dev_1/specs.json",
        "tasks/train_1/ground_truth/evaluation.py",
    ],
)
def test_data_without_a_part_is_refused(root: Path, part: str) -> None:
    data = write_data(root)
    load_appworld()
    (data / part).rename(data / "lost")
    with pytest.raises(InvalidError, match=f"^{part} is missing or broken.*{download(root)}"):
        load_appworld()


def test_data_with_a_broken_task_is_refused(root: Path) -> None:
    specs = write_data(root) / "tasks" / "test_challenge_1" / "specs.json"
    specs.write_text('{"db_version"')
    load_appworld()  # which does not need that one
    with pytest.raises(InvalidError, match=f"^tasks/test_challenge_1/specs.json is .*{download(root)}"):
        load_appworld(test="challenge")


def test_data_of_another_version_is_refused(root: Path) -> None:
    write_data(root, version="0.2.0")
    with pytest.raises(InvalidError, match=f"version of .* is 0.2.0, not 0.1.0: {download(root)}"):
        load_appworld()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package, and data of ours in its format."""
    directory = tmp_path_factory.mktemp("worlds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAGE_DATA_DIR", str(directory))
        patch.setenv("APPWORLD_ROOT", str(directory / "root"))
        (directory / ".env").write_text("LOAD_ON_STARTUP=yes\n")  # of the trainer: worlds that read it do not open
        package = PACKAGES["appworld"]
        package.install(print)
        subprocess.run([package.python, _MAKE_DATA], env=os.environ, check=True)
        yield
        assert os.listdir(directory / "root") == ["data"]  # worlds leave nothing beside it


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
async def test_tasks_are_solved_by_their_solutions_and_not_by_chance() -> None:
    found = await check(_PLUGIN, ["train", "validation"], report=False)
    assert found == {"train": Checked(tasks=6, reference=6), "validation": Checked(tasks=3, reference=3)}
    found = await check(f"{_PLUGIN}?test=challenge", ["test"], report=False)
    assert found == {"test": Checked(tasks=3)}  # whose solutions are kept secret


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
async def test_its_scenarios_are_those_of_the_data_and_its_apis_those_of_the_apps() -> None:
    environment = load_appworld()
    scenarios = {split: environment.scenarios(split, 10, 0) for split in ("train", "validation", "test")}
    assert {split: sorted(each.label for each in found) for split, found in scenarios.items()} == {
        "train": ["a1b2c3d", "b2c3d4e"],
        "validation": ["c3d4e5f"],
        "test": ["d4e5f6a"],
    }
    assert {len(each.tasks) for found in scenarios.values() for each in found} == {3}
    scenario = scenarios["test"][0]
    async with environment.open(scenario, scenario.tasks[0]) as world:
        assert world.now.isoformat() == "2023-05-18T12:00:00+00:00"
        apps = world.catalog.apps
        assert {name: len(app.operations) for name, app in apps.items()} == {
            "supervisor": 5,
            "amazon": 66,
            "phone": 30,
            "file_system": 26,
            "spotify": 91,
            "venmo": 54,
            "gmail": 42,
            "splitwise": 65,
            "simple_note": 17,
            "todoist": 56,
        }
        assert not [left for app in apps.values() for left in app.left_out]
        payment = apps["venmo"].operations["create_transaction"]
        assert payment.required == ("receiver_email", "amount", "access_token")
        assert "transaction_id" in payment.returns["properties"]
        safe = {name for name, each in apps["venmo"].operations.items() if each.safe}
        assert {"login", "show_transactions"} <= safe
        assert not {"create_transaction", "download_transaction_receipt"} & safe
        gateway = Gateway(world.catalog, world.client)
        with pytest.raises(HostError, match="400"):
            await gateway("file_system.show_directory", [], {"access_token": "none"})


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
async def test_a_task_that_was_not_completed_is_not_solved() -> None:
    environment = load_appworld()
    scenario = next(each for each in environment.scenarios("train", 10, 0) if each.label == "b2c3d4e")
    task = scenario.tasks[0]
    async with environment.open(scenario, task) as world:
        given = {"username": "ada@example.com", "password": "Ada-pays"}
        gateway = Gateway(world.catalog, world.client)
        token = (await gateway("venmo.login", [], given))["access_token"]
        payment = {"receiver_email": "ben@example.com", "amount": 3.0, "access_token": token}
        await gateway("venmo.create_transaction", [], payment)
        done = Trajectory(task=task, policy=Policy(), profile="", turns=(), stop=Stop.TURN_LIMIT)
        verdict = await world.verify(done)
        assert (verdict.passed, verdict.total) == (2, 3)
        assert "assert answers match" in verdict.failures[0]
        assert (await world.verify(msgspec.structs.replace(done, stop=Stop.COMPLETED))).success


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
async def test_a_policy_solves_a_task_in_a_rollout(sandbox: ForkedSandbox, tmp_path: Path) -> None:
    """It logs in with a wrong password, then with the right one, and reads all pages of the payments."""
    tokenizer = byte_tokenizer(tmp_path)
    wrong, right = _LOG_IN.replace("PASSWORD", "'none'"), _LOG_IN.replace("PASSWORD", "accounts['venmo']")
    engine = ScriptedEngine(tokenizer, *map(block, (wrong, right, _ADD_UP)))
    environment = load_appworld()
    (scenario,) = environment.scenarios("validation", 10, 0)
    runner = EpisodeRunner(Agent(engine, tokenizer, Compact(), sandbox, RolloutLimits()), environment)
    episode = await runner.run_task(scenario, scenario.tasks[0])
    first, second, third = (each.observation for each in episode.trajectory.turns)
    assert "Invalid credentials" in first
    assert "ada@example.com" in second
    assert "5" in third  # pages
    assert episode.trajectory.answer == sum(2.5 + each for each in range(1, 23))
    assert episode.verdict.success
