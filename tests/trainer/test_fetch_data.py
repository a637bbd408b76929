"""The data that a worker fetches for a supervised run, from uploads and from allowed places."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from app.base.errors import InvalidError
from app.base.files import sha256_of
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.db import tables
from app.db.database import Sessions
from app.runs import datasets
from app.runs.datasets import DatasetStore
from tests.support.rows import project_row
from tests.support.s3_server import KEYS, s3_server
from trainer.run_job import Job
from trainer.runs.sft import fetch_data

CONTENT = b'{"messages": []}\n'
MakeJob = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path) -> MakeJob:
    def make(data: str, project_id: UUID | None = None, **settings: Any) -> Job:
        return Job(
            id=uuid4(),
            project_id=project_id or uuid4(),
            project="shop",
            settings=RunSettings(kind=RunKind.SFT, data=data),
            directory=tmp_path / "worker" / "run",
            deployment=Settings(data_dir=tmp_path / "worker", **settings),
        )

    return make


def _write(path: Path, store: DatasetStore) -> None:
    store.local.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)


async def uploaded(sessions: Sessions, store: DatasetStore, path: Path) -> tables.Dataset:
    _write(path, store)
    async with sessions.begin() as session:
        project = await project_row(session)
        new = tables.Dataset(
            id=uuid4(),
            project_id=project.id,
            name="chats",
            digest=sha256_of(path),
            bytes=len(CONTENT),
            conversations=1,
        )
        await store.put(new.id, path)
        return await datasets.add(session, new)


async def test_a_worker_on_another_host_fetches_an_upload_from_the_shared_store(
    sessions: Sessions, job: MakeJob, tmp_path: Path
) -> None:
    shared = str(tmp_path / "shared")
    row = await uploaded(sessions, DatasetStore(tmp_path / "api" / "datasets", shared), tmp_path / "new")
    (tmp_path / "new").unlink()
    fetched = await fetch_data(job(str(row.id), row.project_id, adapter_store=shared), sessions)
    assert fetched.read_bytes() == CONTENT


async def test_a_damaged_or_missing_upload_is_refused(sessions: Sessions, job: MakeJob, tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "worker" / "datasets")
    row = await uploaded(sessions, store, tmp_path / "new")
    stored = store.local / f"{row.id}.jsonl"
    assert (await fetch_data(job(str(row.id), row.project_id), sessions)).read_bytes() == CONTENT
    stored.write_bytes(b"other")
    with pytest.raises(InvalidError, match="is damaged"):
        await fetch_data(job(str(row.id), row.project_id), sessions)
    stored.unlink()
    with pytest.raises(InvalidError, match="is missing"):
        await fetch_data(job(str(row.id), row.project_id), sessions)


async def test_a_run_cannot_fetch_the_upload_of_another_project(
    sessions: Sessions, job: MakeJob, tmp_path: Path
) -> None:
    row = await uploaded(sessions, DatasetStore(tmp_path / "worker" / "datasets"), tmp_path / "new")
    with pytest.raises(InvalidError, match="was deleted"):
        await fetch_data(job(str(row.id)), sessions)


async def test_the_worker_refuses_places_that_its_own_prefixes_do_not_allow(
    sessions: Sessions, job: MakeJob, tmp_path: Path
) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    allowed.mkdir()
    secret.write_bytes(CONTENT)
    (allowed / "good").write_bytes(CONTENT)
    (allowed / "link").symlink_to(secret)
    prefixes = str(allowed)
    assert await fetch_data(job(f"{allowed}/good", data_prefixes=prefixes), sessions) == allowed / "good"
    for data in (str(secret), f"{allowed}/link", f"{allowed}/../secret", f"file://{allowed}/good"):
        with pytest.raises(InvalidError):
            await fetch_data(job(data, data_prefixes=prefixes), sessions)
    with pytest.raises(InvalidError):
        await fetch_data(job(f"{allowed}/good"), sessions)


async def test_a_file_in_an_object_store_is_read_within_its_prefix_and_size(
    sessions: Sessions, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server("bucket") as url:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        async with httpx.AsyncClient(base_url=f"{url}/bucket/chats/", timeout=300, trust_env=False) as client:
            await client.put("good.jsonl", content=CONTENT)
            await client.put("large.jsonl", content=b"x" * 1_000_001)
        prefixes = "s3://bucket/chats"
        fetched = await fetch_data(job("s3://bucket/chats/good.jsonl", data_prefixes=prefixes), sessions)
        assert fetched.read_bytes() == CONTENT
        for name, reason in (("large.jsonl", "more than 1,000,000 bytes"), ("missing.jsonl", "does not exist")):
            with pytest.raises(InvalidError, match=reason):
                await fetch_data(job(f"s3://bucket/chats/{name}", data_prefixes=prefixes), sessions, 1_000_000)
