"""Hosted models over REST: added with a probe, listed without their keys, changed, and kept while they serve."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from sqlalchemy import select

from app.apis.calls.network import OwnServices, Service
from app.base.errors import EngineError, EngineRefusalError
from app.base.values import hosted
from app.db import tables
from app.db.database import Sessions, keys_of
from app.db.tables import ReleaseState
from app.engine.tokenizer import Message
from app.projects import usage
from app.releases import hosted_models
from app.releases import store as releases
from app.releases.hosted_models import HostedModels
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.every_row import every_row
from tests.support.odd_endpoint import OddEndpoint, Reply, refused, said
from tests.tasks.test_secrets_stay_secret import dump

KEY = "sk-0123456789-secret"
HELLO = [Message("user", "Hello!")]


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


class Provider(OddEndpoint):
    """Takes `key`, and has `names`."""

    def __init__(self) -> None:
        super().__init__(self.say)
        self.key, self.names = KEY, ["wise-1", "wise-2"]

    def say(self, sent: Mapping[str, Any]) -> Reply:
        if self.headers[-1].get("authorization", "") != f"Bearer {self.key}":
            return refused("Incorrect API key", 401)
        if sent["model"] not in self.names:
            return refused(f"The model {sent['model']} does not exist", 404)
        return said("1 2 3 4", usage={"prompt_tokens": 9, "completion_tokens": 5})


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def url(provider: Provider) -> AsyncIterator[str]:
    async with provider.listening() as opened:
        yield opened


async def add(api: ApiApp, url: str, name: str = "wise", status: int = 201, **fields: Any) -> dict[str, Any]:
    body = {"name": name, "url": url, "model": "wise-1", "key": KEY, **fields}
    answer = await api.client.post("/v1/hosted-models", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def change(api: ApiApp, status: int = 200, headers: Any = None, **fields: Any) -> dict[str, Any]:
    answer = await api.client.patch("/v1/hosted-models/wise", json=fields, headers=headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def row_of(api: ApiApp, name: str = "wise") -> tables.HostedModel:
    async with api.sessions() as session:
        return await hosted_models.get(session, api.demo.id, name)


async def test_an_added_model_is_probed_and_listed_without_its_key(api: ApiApp, url: str) -> None:
    added = await add(api, url, price_in=2.5, price_out=10)
    assert (added["name"], added["project"], added["url"], added["model"]) == ("wise", "demo", url, "wise-1")
    assert (added["has_key"], added["price_in"], added["price_out"], added["failure"]) == (True, 2.5, 10, None)
    assert added["abilities"] == {
        "limit": "max_tokens",
        "temperature": True,
        "stops": True,
        "system": True,
        "thoughts": "none",
        "usage": True,
        "streams": False,
        "stream_usage": True,
        "context": None,
        "lists": "",
    }
    assert added["probed_at"] is not None
    listed = await api.client.get("/v1/hosted-models")
    shown = await api.client.get("/v1/hosted-models/wise")
    assert (listed.json(), shown.json()) == ([added], added)
    assert KEY not in listed.text + shown.text + await dump(api.sessions)
    await add(api, url, status=409)


async def test_an_endpoint_that_refuses_is_an_error_with_its_reason_and_nothing_is_stored(
    api: ApiApp, url: str, provider: Provider
) -> None:
    provider.pages = {"/v1/models": Reply({"data": [{"id": name} for name in provider.names]})}
    rows: list[tuple[dict[str, Any], str]] = [
        ({"key": "sk-bad"}, r"refuses the key (401: Incorrect API key): give the model a good one"),
        ({"key": None}, "refuses the key (401"),
        ({"model": "wise-3"}, "has no model 'wise-3' (404: The model wise-3 does not exist)"),
        ({"model": "vise-2"}, "did you mean wise-2?"),
        ({"url": "http://127.0.0.1:9"}, "http://127.0.0.1:9/v1/chat/completions cannot be reached"),
        ({"url": url.replace("//", "//ann:secret@")}, "url: it holds a name or a password"),
        ({"url": "ftp://x"}, "url"),
        ({"url": f"{url}?key=1"}, "url"),
        ({"price_in": -1}, "price_in"),
        ({"colour": "red"}, "colour"),
    ]
    with every_row() as row:
        for fields, reason in rows:
            with row(fields):
                answer = await api.client.post(
                    "/v1/hosted-models", json={"name": "wise", "url": url, "model": "wise-1", "key": KEY, **fields}
                )
                assert answer.status_code == 400
                assert reason in str(problem(answer))
    assert (await api.client.get("/v1/hosted-models")).json() == []


async def test_an_endpoint_that_takes_any_name_is_added_with_a_remark(
    api: ApiApp, url: str, provider: Provider
) -> None:
    provider.pages = {"/v1/models": Reply({"data": [{"id": "tiny.gguf"}]})}
    assert (await add(api, url))["remark"] == "the endpoint lists only tiny.gguf: another model may answer"
    provider.pages = {"/v1/models": Reply({"data": [{"id": "wise-1"}]})}
    probed = await api.client.post("/v1/hosted-models/wise/probe")
    assert probed.json()["remark"] is None


async def test_a_change_is_probed_and_what_is_left_out_stays(api: ApiApp, url: str, provider: Provider) -> None:
    await add(api, url, price_in=1)
    asked = len(provider.requests)
    priced = await change(api, price_out=3)
    assert (priced["price_in"], priced["price_out"], len(provider.requests)) == (1, 3, asked)
    assert (await change(api, price_in=None))["price_in"] is None
    assert "refuses the key" in str(await change(api, 400, key="sk-bad"))
    provider.key = "sk-another-one"
    assert (await change(api, key=provider.key))["model"] == "wise-1"
    assert (await change(api, model="wise-2"))["model"] == "wise-2"
    async with api.sessions() as session:
        row = await hosted_models.get(session, api.demo.id, "wise")
        assert HostedModels().key_of(row, keys_of(session)) == provider.key
    assert "does not exist" in str(await change(api, 400, model="wise-3"))


async def test_a_key_goes_to_no_other_server_than_it_was_sent_for(api: ApiApp, url: str) -> None:
    await add(api, url)
    other = Provider()
    async with other.listening() as elsewhere:
        assert "send its key as well" in str(await change(api, 400, url=elsewhere))
        assert other.headers == []
        assert (await change(api, url=elsewhere, key=KEY))["url"] == elsewhere
    assert {each["authorization"] for each in other.headers} == {f"Bearer {KEY}"}


async def test_a_probe_notes_what_fails_and_that_it_is_mended(api: ApiApp, url: str, provider: Provider) -> None:
    await add(api, url)
    provider.key = "sk-another-one"
    failed = (await api.client.post("/v1/hosted-models/wise/probe")).json()
    assert "refuses the key (401" in failed["failure"]
    assert failed["abilities"]["usage"] is True
    provider.key = KEY
    assert (await api.client.post("/v1/hosted-models/wise/probe")).json()["failure"] is None


class Held(Provider):
    """Answers once it is `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.open.wait()
        await super().__call__(scope, receive, send)


async def test_a_probe_of_what_was_changed_meanwhile_notes_nothing(api: ApiApp) -> None:
    provider = Held()
    async with provider.listening() as url:
        await add(api, url)
        provider.key = "sk-another-one"  # so that the probe fails
        with every_row() as row:
            for columns in ({"model": "wise-2"}, {"key": "sk-other"}, {"url": f"{url}/elsewhere"}):
                with row(columns):
                    provider.open.clear()
                    provider.asked.clear()
                    probing = asyncio.create_task(api.client.post("/v1/hosted-models/wise/probe"))
                    await provider.asked.wait()
                    async with api.sessions.begin() as session:
                        entry = await hosted_models.get(session, api.demo.id, "wise", lock=True)
                        await hosted_models.change(session, entry, **columns)
                    provider.open.set()
                    answer = await probing
                    assert (answer.status_code, (await row_of(api)).failure) == (409, None)
                    assert "was changed by others meanwhile" in answer.text


async def test_a_failed_request_is_noted_until_one_succeeds(api: ApiApp, url: str, provider: Provider) -> None:
    await add(api, url)
    row = await row_of(api)
    async with HostedModels().open(api.sessions, row.id) as model:
        assert (await model.answer(HELLO, max_tokens=9, temperature=0)).text == "1 2 3 4"
        provider.key = "sk-another-one"
        with pytest.raises(EngineError, match="refuses the key"):
            await model.answer(HELLO, max_tokens=9, temperature=0)
        assert "refuses the key" in str((await row_of(api)).failure)
    provider.key = KEY
    async with HostedModels().open(api.sessions, row.id) as model:
        await model.answer(HELLO, max_tokens=9, temperature=0)
    assert (await row_of(api)).failure is None


@pytest.mark.parametrize("seconds", [0.0, 60.0])
async def test_what_a_model_is_asked_for_is_charged_once_each_minute_and_on_leaving(
    api: ApiApp, url: str, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(hosted_models, "_CHARGE_SECONDS", seconds)
    await add(api, url, price_in=3, price_out=15)
    row, each = await row_of(api), (3 * 9 + 15 * 5) / 1e6

    async def spent() -> float:
        async with api.sessions() as session:
            today = await usage.of_today(session, api.demo.id)
            assert (today.other_cost, today.prompt_tokens) == (today.cost, 0), "it was for no task"
            return today.cost

    opened = HostedModels().open(api.sessions, row.id)
    async with hosted_models.charged(opened, api.sessions, api.demo.id, "run", row.id) as model:
        for _ in range(2):
            await model.answer(HELLO, max_tokens=9, temperature=0)
        assert await spent() == pytest.approx(0 if seconds else 2 * each)
    assert await spent() == pytest.approx(2 * each)


async def test_what_is_found_out_in_use_is_known_from_then_on(api: ApiApp, url: str, provider: Provider) -> None:
    await add(api, url)
    row = await row_of(api)
    provider.answer = lambda sent: refused("temperature: only 1") if "temperature" in sent else said("Hello.")
    for _ in range(2):
        async with HostedModels().open(api.sessions, row.id) as model:
            await model.answer(HELLO, max_tokens=9, temperature=0)
    assert ["temperature" in sent for sent in provider.requests[-3:]] == [True, False, False]
    shown = (await api.client.get("/v1/hosted-models/wise")).json()
    assert (shown["abilities"]["temperature"], shown["abilities"]["usage"]) == (False, False)


async def test_a_server_that_is_away_is_waited_for_once_it_was_added(api: ApiApp) -> None:
    provider = Provider()
    async with provider.listening() as url:
        await add(api, url)
    async with HostedModels().open(api.sessions, (await row_of(api)).id, patience=0.5) as model:
        with pytest.raises(EngineError, match="cannot be reached") as failure:
            await model.answer(HELLO, max_tokens=9, temperature=0)
    assert not isinstance(failure.value, EngineRefusalError), "a task waits for it"


async def test_what_serves_is_neither_removed_nor_another_model(api: ApiApp, url: str) -> None:
    await add(api, url)
    row = await row_of(api)
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, hosted(row.id))
        await releases.activate(session, release.id)
    answer = await api.client.delete("/v1/hosted-models/wise")
    assert (answer.status_code, "release 2 serves with the model wise" in answer.text) == (409, True)
    assert "release 2 was made with wise-1" in str(await change(api, 409, model="wise-2"))
    await change(api, price_in=1, key=KEY)
    async with api.sessions.begin() as session:
        first = await releases.numbered(session, api.demo.id, 1)
        await releases.activate(session, first.id)
    assert (await api.client.delete("/v1/hosted-models/wise")).status_code == 204
    assert (await api.client.get("/v1/hosted-models")).json() == []
    async with api.sessions() as session:
        states = await session.scalars(select(tables.Release.state).order_by(tables.Release.number))
        assert states.all() == [ReleaseState.ACTIVE, ReleaseState.RETIRED]


async def test_a_key_of_a_project_sees_and_changes_its_own_alone(api: ApiApp, url: str) -> None:
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    body = {"name": "wise", "url": url, "model": "wise-1", "key": KEY}
    assert (await api.client.post("/v1/hosted-models", json=body, headers=headers)).status_code == 201
    answer = await api.client.post("/v1/hosted-models", json={**body, "project": "demo"}, headers=headers)
    assert answer.status_code == 404
    assert (await api.client.get("/v1/hosted-models", params={"project": "demo"})).json() == []
    mine = (await api.client.get("/v1/hosted-models", headers=headers)).json()
    assert [each["project"] for each in mine] == ["other"]
    tasks_only = await api.key("tasks", "skills", "approvals")
    assert (await api.client.get("/v1/hosted-models", headers=tasks_only)).status_code == 403


async def test_a_url_of_a_projects_own_key_stays_within_what_its_calls_may_reach(
    api: ApiApp, url: str, provider: Provider
) -> None:
    """At the probe and at each request later; one that a key for all projects named may be anywhere."""
    port = int(url.rpartition(":")[2])
    own = OwnServices((Service("localhost", port, "a model server"),))
    headers = await api.key("admin", project_id=api.demo.id)
    body = {"name": "wise", "url": url, "model": "wise-1", "key": KEY}
    assert (await api.client.post("/v1/hosted-models", json=body, headers=headers)).status_code == 201
    await add(api, url, "anywhere")
    asked = len(provider.requests)
    rules = {
        "where a model server is, which is closed to calls": HostedModels(own=own),
        "at the private address 127.0.0.1, which is closed to calls": HostedModels(private=False),
    }
    for reason, rule in rules.items():
        async with rule.open(api.sessions, (await row_of(api)).id) as model:
            with pytest.raises(EngineError, match=reason):
                await model.answer(HELLO, max_tokens=9, temperature=0)
        async with rule.open(api.sessions, (await row_of(api, "anywhere")).id) as model:
            await model.answer(HELLO, max_tokens=9, temperature=0)
    assert len(provider.requests) == asked + 2
    await change(api, headers=headers, url=f"{url}/v1")
    assert not (await row_of(api)).trusted
    await change(api, url=url)
    assert (await row_of(api)).trusted


async def test_names_and_texts_that_no_database_can_store_are_refused(api: ApiApp, url: str) -> None:
    with every_row() as row:
        for name in ("%00", "%ED%A0%80", "a%2Fb", "x" * 300):
            for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/probe")):
                with row(method, name):
                    sent = {"price_in": 1} if method == "PATCH" else None
                    answer = await api.client.request(method, f"/v1/hosted-models/{name}{path}", json=sent)
                    assert answer.status_code in (400, 404, 405)
        for field in ("name", "url", "model", "key"):
            with row(field):
                body = {"name": "wise", "url": url, "model": "wise-1", "key": KEY, field: "http://a\x00"}
                assert (await api.client.post("/v1/hosted-models", json=body)).status_code == 400
