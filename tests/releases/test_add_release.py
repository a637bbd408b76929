"""`sage releases --add` against the real server: an adapter from elsewhere becomes a release."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.db.database import Sessions
from app.engine.adapter_files import CONFIG, WEIGHTS, content_hash
from tests.support.api_app import open_api_app
from tests.support.http_server import served
from tests.support.sage_command import SageCommand
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def shell(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[SageCommand]:
    """The server's adapter directory is the one of SAGE_DATA_DIR=`tmp_path`/data."""
    async with (
        open_api_app(committed, database_url, directory=tmp_path / "data" / "adapters") as api,
        served(api) as client,
    ):
        yield SageCommand(api, str(client.base_url))


async def test_an_adapter_from_elsewhere_is_copied_under_its_hash_and_becomes_a_release(
    shell: SageCommand, model_dir: Path, tmp_path: Path
) -> None:
    brought, env = make_adapter(model_dir, tmp_path / "mine", seed=1), {"SAGE_DATA_DIR": str(tmp_path / "data")}
    name = content_hash(brought)
    ended = await shell.run("releases", "--add", str(brought), "--reason", "made by hand", **env)
    assert ended.code == 0, ended.err
    shown = [line.split(maxsplit=1) for line in ended.out.splitlines()]
    assert ["number", "2"] in shown
    assert ["state", "candidate"] in shown
    assert ["model", name] in shown
    assert {path.name for path in (tmp_path / "data" / "adapters").iterdir()} == {name}, "and nothing half"
    assert {path.name for path in (tmp_path / "data" / "adapters" / name).iterdir()} == {CONFIG, WEIGHTS}
    assert (await shell.run("releases")).out.splitlines()[1].endswith("made by hand")
    again = await shell.run("releases", "--add", str(brought), "--activate", **env)
    assert ["state", "active"] in [line.split() for line in again.out.splitlines()]
    assert shell.api.loads.models == [name]


async def test_the_shared_store_gets_it_too(shell: SageCommand, model_dir: Path, tmp_path: Path) -> None:
    brought = make_adapter(model_dir, tmp_path / "mine", seed=1)
    env = {"SAGE_DATA_DIR": str(tmp_path / "data"), "SAGE_ADAPTER_STORE": str(tmp_path / "store")}
    ended = await shell.run("releases", "--add", str(brought), **env)
    assert ended.code == 0, ended.err
    assert content_hash(tmp_path / "store" / content_hash(brought)) == content_hash(brought)


async def test_an_invalid_adapter_is_neither_copied_nor_made_a_release(
    shell: SageCommand, model_dir: Path, tmp_path: Path
) -> None:
    spoilt = make_adapter(model_dir, tmp_path / "mine", seed=1, fill=float("nan"))
    (tmp_path / "empty").mkdir()
    for directory, said in ((spoilt, "not finite"), (tmp_path / "empty", "there is no adapter")):
        ended = await shell.run("releases", "--add", str(directory), SAGE_DATA_DIR=str(tmp_path / "data"))
        assert ended.code == 1
        assert said in ended.err
        assert ended.err.count("\n") == 1
    assert not (tmp_path / "data").exists()
    assert len((await shell.api.client.get("/v1/releases")).json()) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("2", "--add", "."), "--add creates a release: do not name another"),
        (("--reason", "because"), "--reason needs --add DIR"),
        (("--activate",), "name the release: `sage releases` lists them"),
    ],
)
async def test_conflicting_options_are_refused(shell: SageCommand, options: tuple[str, ...], error: str) -> None:
    ended = await shell.run("releases", *options)
    assert (ended.code, error in ended.err) == (2, True)
