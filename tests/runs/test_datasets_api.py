"""Uploaded training data, and which data a run may name, through the HTTP stack."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.base.errors import InvalidError, SettingError
from app.base.settings import Settings
from app.db.database import Sessions
from app.runs.datasets import DataRules, check_location, prefixes_in, resolve_path
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.served_scores import serve_scored

CHAT = {"messages": [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "done"}]}
LINE = json.dumps(CHAT).encode() + b"\n"
RULES = DataRules(prefixes=("s3://bucket/chats/", "/srv/data/"), max_bytes=100_000)


@pytest.fixture
async def api(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url, directory=tmp_path, data_rules=RULES) as opened:
        yield opened


async def upload(api: ApiApp, content: bytes, **query: str) -> httpx.Response:
    return await api.client.post("/v1/datasets", content=content, params=query)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "datasets").glob("*"))


async def start(api: ApiApp, data: str, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"kind": "sft", "settings": {"data": data}}
    return await api.client.post("/v1/training-runs", json=body, headers=headers)


async def test_an_upload_is_stored_hashed_counted_and_listed(api: ApiApp, tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + LINE * 3 + b"\n\r\n" + LINE.strip()
    answer = await upload(api, content, name="good chats")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["project"], made["name"], made["conversations"], made["bytes"]) == (
        "demo",
        "good chats",
        4,
        len(content),
    )
    assert made["digest"] == hashlib.sha256(content).hexdigest()
    assert files(tmp_path) == [f"{made['id']}.jsonl"]
    assert (tmp_path / "datasets" / f"{made['id']}.jsonl").read_bytes() == content
    assert (await api.client.get("/v1/datasets")).json()["datasets"] == [made]
    assert (await api.client.get(f"/v1/datasets/{made['id']}")).json() == made


async def test_the_same_content_is_the_same_dataset_and_stored_once(api: ApiApp, tmp_path: Path) -> None:
    answers = [await upload(api, LINE) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no conversation"),
        (b"\n\n", "no conversation"),
        (LINE + b"{", "line 2: not JSON"),
        (LINE + b"\n" + b'{"messages": []}', "line 3: the conversation must end"),
        (b"[" * 50_000, "line 1: not JSON"),
        (b'{"messages": [], "x": [' + b"0," * 200_000 + b"0]}", "bytes: split it"),
        (b"\xff\xfe", "line 1: not JSON"),
        (LINE * 2_000, "more than 100,000 bytes"),
    ],
)
async def test_a_file_that_a_run_could_not_read_is_refused_and_leaves_nothing(
    api: ApiApp, tmp_path: Path, content: bytes, named: str
) -> None:
    answer = await upload(api, content)
    assert answer.status_code == 400
    assert named in str(problem(answer)["detail"])
    assert files(tmp_path) == []


async def test_an_upload_that_breaks_off_leaves_nothing(api: ApiApp, tmp_path: Path) -> None:
    async def breaks_off() -> AsyncIterator[bytes]:
        yield LINE
        while not files(tmp_path):  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.02)
        raise RuntimeError("gone")

    async with served(api) as client:
        with pytest.raises(RuntimeError):
            await client.post("/v1/datasets", content=breaks_off())
        while files(tmp_path):  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.02)
    assert (await api.client.get("/v1/datasets")).json()["datasets"] == []


async def test_what_a_killed_process_left_of_an_upload_is_deleted_after_a_day(api: ApiApp, tmp_path: Path) -> None:
    await upload(api, LINE)
    [whole] = (tmp_path / "datasets").iterdir()
    old, young = (whole.with_name(f".partial-{name}") for name in ("old", "young"))
    for each, age in ((whole, 100_000), (old, 100_000), (young, 1_000)):
        each.touch()
        os.utime(each, (time.time() - age,) * 2)
    await upload(api, LINE * 2)
    assert (whole.exists(), old.exists(), young.exists()) == (True, False, True)


async def test_a_file_larger_than_other_bodies_is_accepted(api: ApiApp) -> None:
    answer = await upload(api, LINE * (99_000 // len(LINE)))
    assert answer.status_code == 201


async def test_the_bytes_of_a_projects_datasets_are_limited(api: ApiApp, tmp_path: Path) -> None:
    limits = {"settings": {"limits": {"dataset_bytes": 2 * len(LINE)}}}
    await api.client.patch("/v1/projects/demo", json=limits)
    first = await upload(api, LINE)
    answer = await upload(api, LINE * 2)
    assert (answer.status_code, len(files(tmp_path))) == (409, 1)
    assert "limits.dataset_bytes" in str(problem(answer)["detail"])
    await api.client.delete(f"/v1/datasets/{first.json()['id']}")
    assert (await upload(api, LINE * 2)).status_code == 201


async def test_a_deleted_dataset_is_gone_with_its_file_and_so_are_those_of_a_deleted_project(
    api: ApiApp, tmp_path: Path
) -> None:
    made = (await upload(api, LINE)).json()
    await upload(api, LINE * 2)
    assert (await api.client.delete(f"/v1/datasets/{made['id']}")).status_code == 204
    assert (await api.client.get(f"/v1/datasets/{made['id']}")).status_code == 404
    assert len(files(tmp_path)) == 1
    await api.client.delete("/v1/projects/demo")
    assert files(tmp_path) == []


async def test_a_project_can_neither_see_nor_delete_nor_train_on_the_data_of_another(api: ApiApp) -> None:
    made = (await upload(api, LINE)).json()
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    assert (await api.client.get("/v1/datasets", headers=headers)).json()["datasets"] == []
    assert (await api.client.get(f"/v1/datasets/{made['id']}", headers=headers)).status_code == 404
    assert (await api.client.delete(f"/v1/datasets/{made['id']}", headers=headers)).status_code == 404
    assert (await start(api, made["id"], headers)).status_code == 404
    there = await api.client.post("/v1/datasets", content=LINE, params={"project": "demo"}, headers=headers)
    assert there.status_code == 404


async def test_uploads_need_the_scope_admin(api: ApiApp) -> None:
    answer = await api.client.post("/v1/datasets", content=LINE, headers=await api.key("tasks", "skills"))
    assert answer.status_code == 403


async def test_a_run_may_name_a_dataset_or_a_place_under_a_prefix(api: ApiApp) -> None:
    made = (await upload(api, LINE)).json()
    own = await api.key("admin", project_id=api.demo.id)
    async with api.sessions.begin() as session:
        await serve_scored(session, api.demo.id, 1.0)
    for data in (made["id"], "s3://bucket/chats/good.jsonl", ""):
        assert (await start(api, data, own)).status_code == 202, data
    assert (await start(api, "/srv/data/good.jsonl")).status_code == 202
    assert (await start(api, str(uuid4()))).status_code == 404


_REFUSED = [
    "/etc/passwd",
    "chats.jsonl",
    "../chats.jsonl",
    "/srv/data/../secrets",
    "/srv/data/./../secrets",
    "/srv/data//etc/passwd",
    "/srv/database",
    "/srv/data/",
    "/srv/data",
    "file:///srv/data/a.jsonl",
    "file:///etc/passwd",
    "local:///srv/data/a.jsonl",
    "local://srv/data/a.jsonl",
    "simplecache::file:///etc/passwd",
    "simplecache::s3://bucket/chats/a.jsonl",
    "filecache::/srv/data/a.jsonl",
    "zip://a.jsonl::s3://bucket/chats/a.zip",
    "s3://bucket/chats/a.zip::file:///etc/passwd",
    "s3://bucket/chats/../private/a.jsonl",
    "s3://bucket/chats/%2e%2e/private/a.jsonl",
    "s3://bucket/chats%2fa.jsonl",
    "s3://bucket/chats-private/a.jsonl",
    "s3://bucket/chats\\..\\private",
    "s3://other/chats/a.jsonl",
    "s3://key:secret@bucket/chats/a.jsonl",
    "s3://bucket/chats/a.jsonl?versionId=1",
    "s3://bucket/chats/*.jsonl",
    "s3://bucket/chats/a\n.jsonl",
    "S3://bucket/chats/a.jsonl",
    " s3://bucket/chats/a.jsonl",
    "http://169.254.169.254/latest/meta-data",
    "https://bucket/chats/a.jsonl",
    "gs://bucket/chats/a.jsonl",
    "memory://bucket/chats/a.jsonl",
    "~/chats.jsonl",
    "\\\\host\\share",
]


def test_other_places_are_refused() -> None:
    with every_row() as row:
        for data in _REFUSED:
            with row(data), pytest.raises(InvalidError, match="upload the file"):
                check_location(data, RULES.prefixes, directories=True)


@pytest.mark.parametrize("data", ["/srv/data/good.jsonl", "/etc/passwd", "file:///srv/data/good.jsonl"])
async def test_a_projects_key_can_never_name_a_path_of_the_worker(api: ApiApp, data: str) -> None:
    own = await api.key("admin", project_id=api.demo.id)
    answer = await start(api, data, own)
    assert answer.status_code == 400
    assert "POST /v1/datasets" in str(problem(answer)["detail"])
    schedule: dict[str, Any] = {"every_hours": 1, "settings": {"kind": "sft", "data": data}}
    assert (await api.client.put("/v1/schedule", json=schedule, headers=own)).status_code == 400


def test_a_symbolic_link_out_of_an_allowed_directory_is_refused(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    allowed.mkdir()
    secret.write_text("secret")
    (allowed / "link").symlink_to(secret)
    (allowed / "up").symlink_to(tmp_path)
    (allowed / "good").write_text("good")
    (allowed / "alias").symlink_to(allowed / "good")
    prefixes = prefixes_in(str(allowed))
    assert resolve_path(f"{allowed}/alias", prefixes) == allowed / "good"
    for name in ("link", "up/secret", "missing", ""):
        with pytest.raises(InvalidError, match="no file under a directory"):
            resolve_path(f"{allowed}/{name}", prefixes)


@pytest.mark.parametrize("prefixes", ["file:///srv", "http://host/x", "srv/data", "s3://a/../b", "s3://", "a::b"])
def test_an_unsafe_prefix_is_refused_at_the_start(prefixes: str) -> None:
    with pytest.raises(SettingError, match="SAGE_DATA_PREFIXES"):
        DataRules.of(Settings(data_prefixes=prefixes))
