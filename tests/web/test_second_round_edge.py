"""Second round of attacks: values, names and places at the edge of the server, over HTTP.

A refused request must have changed nothing: the project's settings and rows are compared afterwards.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from app.runs.datasets import DataRules
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.emptied_database import emptied_database
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.webhook_receiver import SECRET

_RULES = DataRules(prefixes=("s3://bucket/chats/", "/srv/data/"), max_bytes=10_000)
_CHAT = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
_VALUE = "launch-code-4711"


@pytest_asyncio.fixture(scope="module")
async def edge(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiApp]:
    """One application for all attacks; each brings a project of its own if it may leave rows."""
    directory = tmp_path_factory.mktemp("edge")
    async with emptied_database(database_url) as database:
        opened = open_api_app(database.sessions, database_url, directory=directory, data_rules=_RULES)
        async with opened as api:
            yield api


async def new_project(api: ApiApp, **limits: int) -> str:
    name = f"p-{uuid4().hex[:8]}"
    await api.project(name)
    answer = await api.client.patch(f"/v1/projects/{name}", json={"settings": {"limits": limits}})
    assert answer.status_code == 200
    return name


async def send_raw(api: ApiApp, method: str, path: str, body: str | bytes) -> httpx.Response:
    """A body that no JSON library would write."""
    return await api.client.request(method, path, content=body, headers={"Content-Type": "application/json"})


_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-1", '"1"', "[]", "{}x", "1" * 5_000)
_SETTINGS = [
    *(
        f'"weight": {number}'
        for number in (*_NUMBERS, "0", "5e-324", "0.0099", "100.1", "-0.0", "true", '{"a": 1}')
    ),
    *(f'"limits": {{"queued_tasks": {number}}}' for number in (*_NUMBERS, "1.5", "true", "1e18", str(10**15 + 1))),
    '"limits": {"Queued_Tasks": 1}',
    '"limits": [0]',
    '"Weight": 2',
    '"skills": "OPEN"',
    '"weight\\u0000": 2',
    '"approvals": {"rules": "none"}',
]


async def test_a_setting_that_is_no_proper_value_is_refused_and_changes_nothing(edge: ApiApp) -> None:
    with every_row() as row:
        for setting in _SETTINGS:
            with row(setting):
                before = (await edge.client.get("/v1/projects/demo")).json()
                answer = await send_raw(edge, "PATCH", "/v1/projects/demo", f'{{"settings": {{{setting}}}}}')
                assert answer.status_code == 400, answer.text
                problem(answer)
                assert (await edge.client.get("/v1/projects/demo")).json() == before


@pytest.mark.parametrize("settings", [{"weight": None}, {"limits": {}}, {"limits": None}, {"weight": 1.0}])
async def test_a_projects_admin_cannot_touch_what_is_the_operators_even_to_reset_it(
    edge: ApiApp, settings: dict[str, Any]
) -> None:
    headers = await edge.key("admin", project_id=edge.demo.id)
    answer = await edge.client.patch("/v1/projects/demo", json={"settings": settings}, headers=headers)
    assert answer.status_code == 403


_TASKS = [
    *(f'"priority": {number}' for number in ("NaN", "1e999", "101", "-101", "1.5", "true", '"x"', "9" * 400)),
    '"principal": "a\\u0000b"',
    f'"principal": "{"a" * 201}"',
    '"principal": ["a", "b"]',
    '"principal": "\\ud800"',
    '"scenario": "\\ud800"',
    '"weight": 100',
    '"id": "00000000-0000-0000-0000-000000000000"',
    '"state": "done"',
    '"variables": {"host": "a\\u0000"}',
]


async def test_a_task_with_an_improper_field_is_refused_and_not_stored(edge: ApiApp) -> None:
    with every_row() as row:
        for field in _TASKS:
            with row(field):
                answer = await send_raw(
                    edge, "POST", "/v1/tasks", f'{{"instruction": "x", "project": "demo", {field}}}'
                )
                assert answer.status_code == 400, answer.text
                assert (await edge.client.get("/v1/tasks?project=demo")).json()["tasks"] == []


Submit = Callable[[ApiApp, str, int], Awaitable[httpx.Response]]


async def _post(api: ApiApp, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return await api.client.post("/v1/tasks", json=body, headers=headers)


def _one(project: str, **fields: Any) -> dict[str, Any]:
    return {"instruction": "x", "project": project, **fields}


_BYPASSES: dict[str, Submit] = {
    "forwarded addresses": lambda api, to, at: _post(api, {"X-Forwarded-For": f"9.9.9.{at}"}, **_one(to)),
    "real addresses": lambda api, to, at: _post(
        api, {"Forwarded": f"for=9.9.9.{at}", "X-Real-IP": f"9.9.9.{at}"}, **_one(to)
    ),
    "an idempotency key each": lambda api, to, at: _post(api, {"Idempotency-Key": f"{to} {at}"}, **_one(to)),
    "a key that a list's task has": lambda api, to, at: _post(
        api, {"Idempotency-Key": f"{to}{'#1' * at}"}, tasks=[_one(to)] * 2
    ),
    "a principal each": lambda api, to, at: _post(api, **_one(to, principal=f"user {at}")),
    "a priority each": lambda api, to, at: _post(api, **_one(to, priority=at)),
    "a scenario each": lambda api, to, at: _post(api, **_one(to, scenario=f"scenario {at}")),
    "lists that cross it": lambda api, to, at: _post(api, tasks=[_one(to)] * (at + 2)),
    "lists with another project first": lambda api, to, _: _post(api, tasks=[_one("demo2"), *[_one(to)] * 2]),
}


async def test_no_way_of_submitting_at_once_passes_a_limit(edge: ApiApp) -> None:
    with every_row() as row:
        for way, submit in _BYPASSES.items():
            for limit in ["queued_tasks", "tasks_per_day"]:
                with row(way, limit):
                    if "demo2" not in {each["name"] for each in (await edge.client.get("/v1/projects")).json()}:
                        await edge.project("demo2")
                    name = await new_project(edge, **{limit: 5})
                    answers = await asyncio.gather(*(submit(edge, name, at) for at in range(12)))
                    statuses = Counter(answer.status_code for answer in answers)
                    assert set(statuses) <= {202, 409, 429}, [answer.text for answer in answers]
                    assert statuses[429], statuses
                    stored = (await edge.client.get("/v1/tasks", params={"project": name})).json()["tasks"]
                    assert 0 < len(stored) <= 5
                    usage = (await edge.client.get(f"/v1/projects/{name}/usage")).json()
                    assert usage["today"]["submitted"] == len(stored)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded"])
async def test_an_invented_address_gives_no_further_guesses_of_keys(edge: ApiApp, header: str) -> None:
    statuses = []
    async with served(edge) as client:
        for at in range(26):
            headers = {"Authorization": f"Bearer {header} {at}", header: f"198.51.100.{at}"}
            statuses.append((await client.get("/v1/projects", headers=headers)).status_code)
    assert statuses[-5:].count(429) >= 4, statuses


_URLS = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "javascript:alert(1)",
    "https:example.org",
    "https:///path",
    "http://?q",
    "HTTP://example.org/",
    " https://example.org/",
    "https://example.org/\r\nX-Evil: 1",
    "https://example.org/\u202e",
    "https://example.org/\x00",
    "https://user@example.org/",
    "https://:word@example.org/",
    "https://@example.org/",
    "https://example.org\\@127.0.0.1/",
    "https://example.org/#@127.0.0.1",
    "https://example.org:0/",
    "https://example.org:70000/",
    "https://example.org:-1/",
    "https://[::1",
    "https://example.org/" + "a" * 2_000,
]


async def test_an_odd_webhook_is_refused(edge: ApiApp) -> None:
    with every_row() as row:
        for url in [*_URLS, None, 7, ["https://example.org/"]]:
            with row(url):
                webhook = {"url": url, "secret": SECRET}
                answer = await edge.client.patch("/v1/projects/demo", json={"settings": {"webhook": webhook}})
                assert answer.status_code == 400, answer.text
                assert (await edge.client.get("/v1/projects/demo")).json()["settings"]["webhook"] is None


_PLACES = [
    "s3://bucket/chats/../../etc/passwd",
    "s3://bucket/chats/..%2f..%2fprivate",
    "s3://bucket/chats/%252e%252e/private",
    "s3://bucket/chats/..",
    "s3://bucket/chats/",
    "s3://bucket/chats//a",
    "s3://bucket/chats/a\x00.jsonl",
    "s3://bucket/chats/\u2024\u2024/a",
    "s3://bucket/chats/\uff0e\uff0e/a",
    "s3://bucket/chats/a\r\nHost: evil",
    "s3://bucket@evil/chats/a",
    "s3://bucket/chats/{a,b}",
    "s3://bucket/chats/[a].jsonl",
    "s3://bucket/chats/" + "../" * 3_000,
    "s3:///bucket/chats/a",
    "s3:/bucket/chats/a",
    "blockcache::dir::s3://bucket/chats/a",
    "reference://::s3://bucket/chats/a",
    "tar://a::s3://bucket/chats/a",
    "github://org:repo@/a",
    "ftp://bucket/chats/a",
    "data:text/plain,hello",
    "/srv/data/%2e%2e/secret",
    "/srv/data/\x00",
    "/srv/data/../../proc/self/environ",
    "{00000000-0000-0000-0000-000000000000}/../../etc/passwd",
]


async def test_no_run_reads_from_another_place(edge: ApiApp) -> None:
    with every_row() as row:
        for data in _PLACES:
            with row(data):
                body = {"kind": "sft", "project": "demo", "settings": {"data": data}}
                answer = await edge.client.post("/v1/training-runs", json=body)
                assert answer.status_code == 400, answer.text
                assert (await edge.client.get("/v1/training-runs?project=demo")).json()["runs"] == []


_NAMES = [
    "../../../etc/cron.d/x",
    "..%2f..%2fx",
    "/etc/passwd",
    "a\\b",
    "C:\\x",
    "a\r\nb",
    "\u202e",
    "x" * 200,
    "~",
]


def _files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", _NAMES, ids=ascii)
async def test_the_name_of_a_dataset_is_no_path(edge: ApiApp, name: str, tmp_path_factory: Any) -> None:
    base = Path(tmp_path_factory.getbasetemp())
    before = _files(base)
    project = await new_project(edge)
    answer = await edge.client.post("/v1/datasets", content=_CHAT, params={"name": name, "project": project})
    assert (answer.status_code, answer.json()["name"]) == (201, name)
    [file] = _files(base) - before
    assert (file.parent.name, file.name) == ("datasets", f"{answer.json()['id']}.jsonl")


@pytest.mark.parametrize("name", ["a\x00", "x" * 201, "x" * 60_000], ids=["NUL", "201", "60,000"])
async def test_a_name_of_a_dataset_that_cannot_be_stored_is_refused(edge: ApiApp, name: str) -> None:
    answer = await edge.client.post("/v1/datasets", content=_CHAT, params={"name": name, "project": "demo"})
    assert answer.status_code == 400
    assert (await edge.client.get("/v1/datasets?project=demo")).json()["datasets"] == []


_SECRETS = ["a/b", "..", "..%2f..%2fprojects%2fdemo", "%2e%2e%2fx", "a%2fb", "a%00", "%00", ".a",
            "-a", "a%0a", "a b", "a" * 65, "%ff", "\u00e9", "a%3fb", "a;b", "a%5cb", "a*"]  # fmt: skip


async def test_no_odd_name_stores_deletes_or_shows_a_secret(edge: ApiApp) -> None:
    with every_row() as row:
        for name in _SECRETS:
            with row(name):
                stored = await edge.client.put("/v1/secrets/kept?project=demo", json={"value": _VALUE})
                assert stored.status_code == 200
                answers = [
                    await edge.client.put(f"/v1/secrets/{name}?project=demo", json={"value": _VALUE}),
                    await edge.client.delete(f"/v1/secrets/{name}?project=demo"),
                    await edge.client.get(f"/v1/secrets/{name}?project=demo"),
                ]
                assert {answer.status_code for answer in answers} <= {400, 404, 405}, [
                    answer.text for answer in answers
                ]
                answers += [
                    stored,
                    await edge.client.get("/v1/secrets?project=demo"),
                    await edge.client.get("/v1/audit"),
                ]
                assert [answer for answer in answers if _VALUE in answer.text] == []
                assert [each["name"] for each in answers[-2].json()] == ["kept"]


@pytest.mark.parametrize("value", ["\\ud800abc" + _VALUE, "\\u0000" + _VALUE, _VALUE * 1_000, _VALUE[:3]])
async def test_a_value_that_is_refused_is_not_repeated_in_the_answer(edge: ApiApp, value: str) -> None:
    answer = await send_raw(edge, "PUT", "/v1/secrets/odd?project=demo", f'{{"value": "{value}"}}')
    assert answer.status_code == 400, answer.text
    assert value[:3] not in json.dumps(answer.json()).replace("kept", "")
