"""The `sage` command: its subcommands, and how it fails."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import NullPool, create_engine, text

from app.base.encryption import KeyRing
from app.base.files import write_admin_key
from app.base.settings import Settings
from app.cli import main
from app.db.database import open_database
from app.db.migrate import migrate
from app.projects import keys, secrets
from app.projects import store as projects
from tests.support.every_row import every_row
from tests.support.processes import free_ports
from tests.support.scripted_engine import byte_tokenizer
from trainer.worlds.demo import make_token


async def sage(*arguments: str, **env: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    command = (sys.executable, "-m", "app.cli", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def test_help_lists_the_commands_of_the_app_and_of_the_trainer() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0, shown.output
    listed = {line.split()[0] for line in shown.output.partition("Commands:")[2].splitlines() if line.strip()}
    own = {"up", "console", "serve", "runner", "worker", "migrate", "backup", "restore", "doctor", "manifests"}
    client = {"run", "tasks", "score", "apis", "skills", "keys", "projects", "approvals"}
    training = {"collect", "export", "train", "practice", "runs", "releases"}
    demo = {"demo-apis", "bootstrap", "environments", "eval", "models", "reproduce", "simulate-live", "worlds"}
    assert listed == own | client | training | demo


def test_every_command_reports_an_invalid_setting_in_one_line() -> None:
    for command in (
        ["up"],
        ["serve"],
        ["runner"],
        ["worker"],
        ["migrate"],
        ["keys", "create", "x"],
        ["manifests", "--for", "llm-d"],
    ):
        shown = CliRunner().invoke(main, command, env={"SAGE_PORT": "http"})
        code = 2 if command[0] == "keys" else 1  # wrong usage, as interfaces.md has it of a server's users
        assert (shown.exit_code, shown.output) == (code, "Error: SAGE_PORT='http': must be a whole number\n"), (
            command
        )


_SERVERS: list[tuple[dict[str, str], str]] = [
    ({"SAGE_PORT": "9"}, "http://127.0.0.1:9"),
    ({"SAGE_PORT": "9", "SAGE_HOST": "0.0.0.0"}, "http://127.0.0.1:9"),
    ({"SAGE_PORT": "9", "SAGE_HOST": "127.0.0.2"}, "http://127.0.0.2:9"),
    ({"SAGE_PORT": "8", "SAGE_URL": "http://127.0.0.3:9"}, "http://127.0.0.3:9"),
]


_CALLING: list[tuple[str, ...]] = [
    ("runs",),
    ("releases",),
    ("train",),
    ("export", "--out", "x"),
    ("tasks",),
    ("eval",),
]


def test_commands_call_the_server_that_the_settings_name(tmp_path: Path) -> None:
    with every_row() as row:
        for at, (env, url) in enumerate(_SERVERS):
            for command in _CALLING:
                with row(command, env):
                    directory = tmp_path / f"{at} {command[0]}"
                    directory.mkdir()
                    make_token(directory)  # of the demo APIs, for `eval`
                    unset = {"SAGE_URL": None, "SAGE_HOST": None, "SAGE_KEY": "x", "SAGE_DATA_DIR": str(directory)}
                    ended = CliRunner().invoke(main, command, env={**unset, **env})
                    assert ended.exit_code == 5
                    assert f"{url} does not answer" in ended.output


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SAGE_MODEL", "{tmp}/none", "SAGE_MODEL={tmp}/none: {tmp}/none has no config.json"),
        ("SAGE_DATA_DIR", "{tmp}/file/data", "{tmp}/file/data cannot be written"),
        ("SAGE_HOST", "192.0.2.1", "set SAGE_PORT"),
        ("SAGE_PROMPT_PROFILE", "terse", "SAGE_PROMPT_PROFILE"),
        ("DATABASE_URL", "postgresql://sage:hush@127.0.0.1:9/x", "Check DATABASE_URL"),
        ("DATABASE_URL", "mysql://127.0.0.1/x", "only postgresql:// is supported"),
    ],
)
async def test_up_refuses_an_invalid_setting_in_one_line(
    variable: str, value: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, _, err = await sage("up", **_without_services(tmp_path) | {variable: value.format(tmp=tmp_path)})
    assert code == 1
    assert message.format(tmp=tmp_path) in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert "hush" not in err


async def test_up_reports_why_a_process_does_not_start(tmp_path: Path, empty_database_url: str) -> None:
    env = _without_services(tmp_path) | {"DATABASE_URL": empty_database_url, "ENGINE_URLS": ""}
    code, _, err = await sage("up", **env)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"Error: model-server does not start: the model in {tmp_path}/model cannot be loaded")


async def test_up_refuses_a_database_of_a_newer_version(tmp_path: Path, empty_database_url: str) -> None:
    migrate(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    code, _, err = await sage("up", **_without_services(tmp_path) | {"DATABASE_URL": empty_database_url})
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("Error: the database has schema from_the_future")


async def test_an_admin_key_is_created_in_the_database_itself(empty_database_url: str) -> None:
    code, out, err = await sage("keys", "create-admin", "ops", DATABASE_URL=empty_database_url)
    assert code == 0, err
    async with open_database(empty_database_url) as database, database.sessions() as session:
        key, _ = await keys.by_secret(session, out.strip()) or (None, None)
    assert key is not None
    assert (key.name, key.scopes) == ("ops", ["admin"])


async def test_a_link_to_the_console_is_printed_for_the_admin_key_of_the_data_directory(
    empty_database_url: str, tmp_path: Path
) -> None:
    env = {"DATABASE_URL": empty_database_url, "SAGE_DATA_DIR": str(tmp_path), "SAGE_PORT": "8123"}
    code, out, err = await sage("console", **env)
    assert (code, out) == (1, "")
    assert "admin.key has no valid key" in err
    async with open_database(empty_database_url) as database:
        async with database.sessions.begin() as session:
            key, secret = await keys.create(session, "admin", ["admin"])
        write_admin_key(tmp_path, secret)
        code, out, err = await sage("console", **env)
        assert code == 0, err
        address, link = out.strip().split("?link=")
        assert address == "http://127.0.0.1:8123/console/sign-in"
        async with database.sessions.begin() as session:
            found, _ = await keys.key_of_link(session, link) or (None, None)
            assert found is not None
            assert found.id == key.id


@pytest.mark.parametrize("command", [("keys", "create-admin"), ("keys", "rotate"), ("backup", "copy.tar")])
async def test_no_database_is_created_where_no_server_has_one(command: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = await sage(*command, DATABASE_URL="", SAGE_DATA_DIR=str(tmp_path / "data"))
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: {tmp_path}/data is no server's data directory: set SAGE_DATA_DIR")
    assert not os.listdir(tmp_path)


async def test_the_key_for_secrets_is_created_by_the_migration_and_rotated(
    empty_database_url: str, tmp_path: Path
) -> None:
    env = {"DATABASE_URL": empty_database_url, "SAGE_DATA_DIR": str(tmp_path), "SAGE_SECRET_KEY": ""}
    code, out, err = await sage("migrate", **env)
    assert (code, f"created {tmp_path}/secret.key" in out) == (0, True), err
    before = KeyRing.open(Settings(data_dir=tmp_path)).ids()
    async with (
        open_database(empty_database_url, keys=KeyRing.open(Settings(data_dir=tmp_path))) as database,
        database.sessions.begin() as session,
    ):
        project = await projects.create(session, "demo")
        await secrets.put(session, project.id, "mail", "hunter2")
    code, out, err = await sage("keys", "rotate", **env)
    assert (code, "; 1 were encrypted anew" in out) == (0, True), err
    ring = KeyRing.open(Settings(data_dir=tmp_path))
    assert ring.ids()[1:] == before
    async with open_database(empty_database_url, keys=ring) as database, database.sessions.begin() as session:
        assert await secrets.use(session, project.id, "mail") == "hunter2"


async def test_a_worker_without_a_database_is_refused_in_one_line(tmp_path: Path) -> None:
    code, _, err = await sage("worker", DATABASE_URL="", SAGE_DATA_DIR=str(tmp_path))
    assert (code, err.count("\n")) == (1, 1)
    assert "DATABASE_URL is not set" in err


async def test_an_idle_worker_logs_nothing_and_stops_on_sigterm(database_url: str, tmp_path: Path) -> None:
    env = {**os.environ, "SAGE_DATA_DIR": str(tmp_path), "DATABASE_URL": database_url, "PYTHONUNBUFFERED": "1"}
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "worker"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not (tmp_path / "broker" / "control" / "lock").exists():  # noqa: ASYNC110  it consumes from then on
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)  # idle
    assert worker.returncode is None
    worker.terminate()
    out, _ = await worker.communicate()
    assert worker.returncode == 0
    assert out.decode().strip() in ("", "worker: Warm shutdown (MainProcess)")


def _without_services(directory: Path) -> dict[str, str]:
    """Settings with which `sage up` starts only the API and the worker."""
    byte_tokenizer(directory / "model")
    port, engine = map(str, free_ports(2))
    return {
        "SAGE_DATA_DIR": str(directory / "data"),
        "SAGE_MODEL": str(directory / "model"),
        "SAGE_DEMO_PORT": "0",
        "SAGE_PORT": port,
        "SAGE_ENGINE_PORT": engine,
        "ENGINE_URLS": "http://127.0.0.1:9",
        "DATABASE_URL": "postgresql://127.0.0.1:9/x",
    }


async def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom app.cli import main\nmain(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'litestar', 'sqlalchemy', 'celery', 'alembic'} & sys.modules.keys()\n"
        "print(heavy or 'light')"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.decode().splitlines()[-1] == "light"
