"""Runs that cannot succeed: each fails with a named error, and the active release stays."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from app.apis import store as apis
from app.base.settings import Settings
from app.base.values import Json
from app.db.database import Sessions
from app.engine.adapter_files import CONFIG, WEIGHTS
from tests.support.small_disk import small_disk
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir
from tests.support.training_project import ProgressRecorder, TrainingProject, chats, interrupted
from trainer.run import train
from trainer.worlds.office.apps import APP_NAMES, Site, document, operation_names

LOGGED = {"kind": "logged", "steps": 2}
SFT = {"kind": "sft", "steps": 2}
KINDS = pytest.mark.parametrize("given", [LOGGED, SFT], ids=["logged", "sft"])
ADAPTER = "c0ffee"


@pytest.fixture
def settings(tiny: Path, database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        model=str(tiny),
        data_dir=tmp_path,
        database_url=database_url,
        engine_device="cpu",
        data_prefixes=str(tmp_path),
    )


@pytest.fixture
async def shop(committed: Sessions, settings: Settings) -> TrainingProject:
    return await TrainingProject.open(committed, settings)


@KINDS
async def test_a_run_without_tasks_or_scores_says_how_to_get_data(
    shop: TrainingProject, given: dict[str, Any]
) -> None:
    assert (await shop.failure(await shop.job(**given))).startswith("InvalidError: nothing to learn from: no task")
    await shop.serve(None)
    failure = await shop.failure(await shop.job(**given))
    assert failure.startswith("InvalidError: no scored tasks in the window, of 2 that ended: submit tasks with a")


async def test_a_group_of_one_is_dropped(shop: TrainingProject) -> None:
    await shop.serve(1.0)
    failure = await shop.failure(await shop.job(**LOGGED))
    assert failure.startswith("InvalidError: nothing to learn from in 2 tasks (2 no_peers): serve several tasks")


@pytest.mark.parametrize(
    ("text", "named"),
    [(None, "chats.jsonl"), ("", "chats.jsonl"), ('{"messages": []}\n', "line 1"), ("{\n", "line 1")],
)
async def test_a_file_of_chats_that_is_missing_empty_or_broken_is_named(
    shop: TrainingProject, tmp_path: Path, text: str | None, named: str
) -> None:
    path = tmp_path / "chats.jsonl"
    if text is not None:
        path.write_text(text)
    failure = await shop.failure(await shop.job(**SFT, data=str(path)))
    assert failure.startswith("InvalidError: ")
    assert named in failure


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ("", "needs the setting environment"),
        ("moon", "has no 'moon', it has agentdojo, "),
        ("office?sight=1", "sight"),
    ],
)
async def test_a_rollout_run_needs_a_known_environment(
    shop: TrainingProject, environment: str, named: str
) -> None:
    failure = await shop.failure(await shop.job(kind="rollout", environment=environment))
    assert failure.startswith("InvalidError: ")
    assert named in failure


@KINDS
async def test_an_unknown_environment_is_refused_before_the_training(
    shop: TrainingProject, given: dict[str, Any]
) -> None:
    await shop.serve(1.0, 0.0)
    failure = await shop.failure(await shop.job(**given, environment="ofice", gate_scenarios=60))
    assert failure.startswith("InvalidError: sage.environments has no 'ofice', it has agentdojo, ")
    assert await shop.adapters() == []


@pytest.fixture
def put(shop: TrainingProject, committed: Sessions) -> Callable[[str, dict[str, Json]], Awaitable[None]]:
    async def put(name: str, document: dict[str, Json]) -> None:
        digest = hashlib.sha256(msgspec.json.encode(document)).hexdigest()
        async with committed.begin() as session:
            await apis.put(session, shop.project_id, name, source="upload", document=document, digest=digest)

    return put


OFFICE = {**LOGGED, "environment": "office", "gate_scenarios": 60}
NOTHING = "InvalidError: nothing to learn from"  # what a run says that was let through


def office(app: str) -> dict[str, Json]:
    """The document of an app at one site."""
    return document(Site.of(0), app, "http://office.test")


def own(*operations: str) -> dict[str, Json]:
    """A document of APIs that the office lacks."""
    paths = {f"/{name}": {"get": {"operationId": name}} for name in operations}
    return {"openapi": "3.1.0", "servers": [{"url": "http://crm.test"}], "paths": paths}


async def test_a_gate_without_an_api_of_the_project_is_refused_unless_the_run_accepts_it(
    shop: TrainingProject, committed: Sessions, put: Callable[[str, dict[str, Json]], Awaitable[None]]
) -> None:
    for app in APP_NAMES:
        await put(app, office(app))
    await put("crm", own("list_leads"))
    failure = await shop.failure(await shop.job(**OFFICE))
    assert failure.startswith("InvalidError: the environment office has no crm, so its evaluation says nothing")
    assert (await shop.failure(await shop.job(**OFFICE, foreign_exam=True))).startswith(NOTHING)
    assert (await shop.failure(await shop.job(**OFFICE | {"gate_scenarios": 0}))).startswith(NOTHING)
    async with committed.begin() as session:
        await apis.delete(session, shop.project_id, "crm")
    assert (await shop.failure(await shop.job(**OFFICE))).startswith(NOTHING)


async def test_a_gate_with_other_apis_under_the_names_of_the_project_is_refused_unless_the_run_accepts_it(
    shop: TrainingProject, put: Callable[[str, dict[str, Json]], Awaitable[None]]
) -> None:
    await put("mail", own("list_letters", "stamp", "show_passwords"))
    await put("supervisor", office("supervisor"))
    failure = await shop.failure(await shop.job(**OFFICE))
    assert failure.startswith(
        "InvalidError: the environment office has only 0 of the 3 operations of mail, so its"
    )
    assert "foreign_exam=true" in failure
    assert (await shop.failure(await shop.job(**OFFICE, foreign_exam=True))).startswith(NOTHING)


async def test_a_tenth_of_the_operations_of_an_api_may_be_missing_in_the_gate(
    shop: TrainingProject, put: Callable[[str, dict[str, Json]], Awaitable[None]]
) -> None:
    known = operation_names()["mail"][:18]
    await put("mail", own(*known, "stamp", "weigh"))
    assert (await shop.failure(await shop.job(**OFFICE))).startswith(NOTHING)
    await put("mail", own(*known, "stamp", "weigh", "frank"))
    assert "only 18 of the 21 operations of mail" in await shop.failure(await shop.job(**OFFICE))


def spoil(shop: TrainingProject, tiny: Path, how: str) -> None:
    path = shop.settings.data_dir / "adapters" / ADAPTER
    if how == "missing":
        return
    if how == "of other shapes":
        tiny = make_model_dir(shop.settings.data_dir / "other", "llama")
    make_adapter(tiny, path, seed=1)
    config = json.loads((path / CONFIG).read_text()) | {"base_model_name_or_path": None}  # as published ones
    (path / CONFIG).write_text(json.dumps(config))
    if how == "cut off":
        (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-100])
    if how == "not finite":
        tensors = load_file(path / WEIGHTS)
        next(iter(tensors.values()))[0, 0] = torch.nan
        save_file(tensors, path / WEIGHTS)


@KINDS
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "AdapterError: there is no adapter in "),
        ("cut off", "cannot be read: it was cut off"),
        ("not finite", "has weights that are not finite"),
        ("of other shapes", "is for another base model"),
    ],
)
async def test_an_adapter_that_cannot_be_continued_is_refused(
    shop: TrainingProject, given: dict[str, Any], tiny: Path, how: str, message: str
) -> None:
    spoil(shop, tiny, how)
    await shop.activate(ADAPTER)
    await shop.serve(1.0, 0.0)
    failure = await shop.failure(await shop.job(**given))
    assert message in failure
    assert failure.startswith(("UnreadableAdapterError", "InvalidError"))
    assert ADAPTER in failure


async def test_an_adapter_whose_row_names_another_base_is_not_continued(
    shop: TrainingProject, tiny: Path, tmp_path: Path
) -> None:
    spoil(shop, tiny, "not at all")
    await shop.activate(ADAPTER, base="another")
    await shop.serve(1.0, 0.0)
    failure = await shop.failure(await shop.job(**LOGGED))
    assert failure.startswith("InvalidError: the active release has an adapter for the base model another")
    anew = await shop.job(**SFT, start="base", data=chats(tmp_path / "chats.jsonl"))
    assert (await train(anew, ProgressRecorder())).adapter


@pytest.mark.parametrize("kind", ["logged", "sft", "rollout"])
async def test_a_model_that_cannot_be_trained_is_named(
    committed: Sessions, settings: Settings, tmp_path: Path, kind: str
) -> None:
    model = make_model_dir(tmp_path / "model")
    shop = await TrainingProject.open(committed, Settings(model=str(model), **_where(settings)))
    await shop.serve(1.0, 0.0)
    (model / "model.safetensors").write_bytes(b"no weights")
    failure = await shop.failure(await shop.job(kind=kind, environment="office"))
    assert failure.startswith(f"ModelError: the model in {model} cannot be loaded")
    (model / "chat_template.jinja").unlink()
    failure = await shop.failure(await shop.job(kind=kind, environment="office"))
    assert failure.startswith("ModelError: ")
    assert "chat template" in failure


def _where(settings: Settings) -> dict[str, Any]:
    return {"data_dir": settings.data_dir, "database_url": settings.database_url, "engine_device": "cpu"}


@KINDS
@pytest.mark.parametrize("size", [200, 20_000])
async def test_a_full_disk_is_reported_and_a_retry_succeeds(
    shop: TrainingProject, given: dict[str, Any], size: int
) -> None:
    """Either the snapshot of the data does not fit, or the first checkpoint."""
    await shop.serve(1.0, 0.0)
    job = await shop.job(**given)
    with small_disk(size):
        failure = await shop.failure(job)
    assert failure.startswith(f"StorageError: the checkpoint {job.directory}" if size > 200 else "StorageError: ")
    assert not list(shop.settings.data_dir.rglob("*.partial"))
    assert (await train(job, ProgressRecorder())).adapter


async def test_an_adapter_that_does_not_fit_on_the_disk_leaves_nothing_behind(shop: TrainingProject) -> None:
    await shop.serve(1.0, 0.0)
    job = await shop.job(**(LOGGED | {"steps": 1}))
    await interrupted(job, at=1)
    with small_disk(2_000):
        failure = await shop.failure(job)
    adapters = shop.settings.data_dir / "adapters"
    assert failure.startswith(f"StorageError: the adapter could not be written to {adapters}")
    assert list(adapters.iterdir()) == []


@KINDS
async def test_a_cancelled_run_leaves_no_release_and_no_adapter(
    shop: TrainingProject, given: dict[str, Any]
) -> None:
    await shop.serve(1.0, 0.0)
    job = await shop.job(**given)
    await interrupted(job, at=1)
    assert await shop.of_run(job) == []
    assert await shop.adapters() == []
    assert not (shop.settings.data_dir / "adapters").exists()
    assert (await shop.active()).number == 1


async def test_weights_that_are_not_finite_are_not_published(shop: TrainingProject) -> None:
    await shop.serve(1.0, 0.0)
    failure = await shop.failure(await shop.job(**SFT, lr=1e30))
    assert failure.startswith("InvalidError: ")
    assert "not finite" in failure


async def test_a_run_without_memory_for_its_engines_says_so_before_it_loads_the_model(
    shop: TrainingProject,
) -> None:
    job = await shop.job(kind="rollout", environment="office")
    large = msgspec.structs.replace(job.deployment, engine_kv_mb=1_000_000)
    failure = await shop.failure(msgspec.structs.replace(job, deployment=large))
    assert failure.startswith("ModelMemoryError: training with the model")
    assert not list(job.directory.iterdir())
