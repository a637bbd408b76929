"""What a new project serves: the base model, with the adapter that comes with it, if one does."""

import shutil
from pathlib import Path

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AdapterError
from app.base.model_catalog import CATALOG
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.adapter_files import content_hash, verify
from app.engine.tokenizer import read_card
from app.projects import store as projects
from app.releases import manifest_store
from app.releases import store as releases
from app.releases.bundled_adapter import BUNDLED, BundledAdapter
from tests.support.api_app import open_api_app
from tests.support.bundled_adapters import BASE, bundle, first_release
from tests.support.named_adapters import cut_short
from tests.support.tiny_model import make_model_dir
from trainer.run_job import Job
from trainer.runs.start import find_start


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def bundled(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> BundledAdapter:
    return bundle(model_dir, tmp_path_factory.mktemp("bundled"))


async def test_it_is_the_base_model_with_the_adapter_that_comes_with_it(
    session: AsyncSession, bundled: BundledAdapter, model_dir: Path, tmp_path: Path
) -> None:
    project = await first_release(bundled, model_dir, tmp_path).create_project(session, "demo")
    [release] = await releases.of_project(session, project.id)
    assert (release.number, release.state, release.model) == (1, ReleaseState.ACTIVE, bundled.hash)
    assert release.evidence == {"reason": f"it comes with {BASE}"}
    row = await manifest_store.get(session, bundled.hash)
    assert (row.base, row.rank, row.project_id, row.probe) == (BASE, 16, None, None)
    assert verify(tmp_path / "adapters" / bundled.hash).base == BASE


async def test_without_such_an_adapter_it_is_the_base_model(
    session: AsyncSession, model_dir: Path, tmp_path: Path
) -> None:
    project = await first_release(None, model_dir, tmp_path).create_project(session, "demo")
    release = await releases.active(session, project.id)
    assert (release.model, release.evidence) == ("base", None)


async def test_over_rest_too(
    committed: Sessions, database_url: str, bundled: BundledAdapter, model_dir: Path, tmp_path: Path
) -> None:
    first = first_release(bundled, model_dir, tmp_path)
    async with open_api_app(committed, database_url, first_release=first) as api:
        for name in ("one", "two"):
            assert (await api.client.post("/v1/projects", json={"name": name})).status_code == 201
            [release] = (await api.client.get("/v1/releases", params={"project": name})).json()
            assert (release["model"], release["state"]) == (bundled.hash, "active")


async def test_a_newer_adapter_changes_nothing_that_is_served(
    session: AsyncSession, bundled: BundledAdapter, model_dir: Path, tmp_path: Path
) -> None:
    before = await first_release(bundled, model_dir, tmp_path).create_project(session, "demo")
    newer = bundle(model_dir, tmp_path / "newer", seed=2)
    after = await first_release(newer, model_dir, tmp_path).create_project(session, "other")
    assert (await releases.active(session, before.id)).model == bundled.hash
    assert (await releases.active(session, after.id)).model == newer.hash != bundled.hash


async def test_training_goes_on_from_it(
    committed: Sessions, bundled: BundledAdapter, model_dir: Path, tmp_path: Path
) -> None:
    async with committed() as session:
        project = await first_release(bundled, model_dir, tmp_path).create_project(session, "demo")
        await session.commit()
    job = Job(
        id=project.id,
        project_id=project.id,
        project="demo",
        settings=RunSettings(),
        directory=tmp_path,
        deployment=Settings(model=BASE, data_dir=tmp_path),
    )
    assert await find_start(job, committed) == tmp_path / "adapters" / bundled.hash


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("cut", "it was cut off, or it is not a safetensors file"),
        ("changed", "the adapter that comes with tiny-1m is damaged"),
        ("missing", "it needs adapter_config.json"),
        ("other base", "is for weights with the SHA-256 0{64}, but those in .* have [0-9a-f]{64}: remove that"),
        ("other model", "does not fit"),
    ],
)
async def test_an_adapter_that_is_damaged_or_for_another_base_is_refused_and_nothing_is_left(
    damage: str, words: str, session: AsyncSession, bundled: BundledAdapter, model_dir: Path, tmp_path: Path
) -> None:
    given = msgspec.structs.replace(bundled, path=tmp_path / bundled.hash)
    shutil.copytree(bundled.path, given.path)
    if damage == "cut":
        cut_short(tmp_path, bundled.hash)
    if damage == "changed":
        config = given.path / "adapter_config.json"
        config.write_text(config.read_text().replace('"lora_alpha": 32', '"lora_alpha": 33'))
    if damage == "missing":
        shutil.rmtree(given.path)
    if damage == "other base":
        given = msgspec.structs.replace(given, weights="0" * 64)
    if damage == "other model":
        model_dir = make_model_dir(tmp_path / "llama", "llama")
    with pytest.raises(AdapterError, match=words):
        await first_release(given, model_dir, tmp_path / "data").create_project(session, "demo")
    assert await projects.list_all(session) == []
    assert not (tmp_path / "data").exists()


def test_the_package_has_the_adapters_that_the_catalogue_names_and_no_other() -> None:
    here = {path.name for path in BUNDLED.iterdir()} if BUNDLED.is_dir() else set()
    assert here == {model.name for model in CATALOG.values() if model.adapter}
    for name in here:
        model = CATALOG[name]
        found = BundledAdapter.of(Path("anywhere", model.directory))
        assert found is not None
        assert (content_hash(found.path), found.weights) == (model.adapter, model.weights)
        assert read_card(found.path)["base_model"] == name
        assert read_card(found.path)["prompt_profile"] == model.prompt_profile
