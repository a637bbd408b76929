"""A model that was made for some APIs alone says so wherever another one is added or used."""

from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from app.apis.documents.protocols import parse_document
from app.apis.documents.reader import DocumentReader
from app.base.model_catalog import SEED, SEED_DIR
from app.base.values import Json, hosted
from app.db.database import Sessions
from app.engine.model_scope import ModelScope
from app.engine.tokenizer import read_card
from app.machine.health import ScopeCheck
from app.machine.routes import ReadinessCheck
from app.releases import store as releases
from tests.support.api_app import ApiApp, open_api_app
from tests.support.approving import ApprovingProject
from tests.support.hosted_project import hosted_entry
from tests.support.ledger import Ledger
from trainer.worlds.office.apps import APP_NAMES, Site, document

SCOPE = ModelScope.of(SEED, read_card(SEED_DIR))
REMARK = "will do nothing useful with ledger: set SAGE_MODEL to an instruct model"


@pytest.fixture
async def scope_check(committed: Sessions) -> AsyncIterator[ScopeCheck]:
    async with DocumentReader() as reader:
        yield ScopeCheck(committed, reader, SCOPE)


@pytest.fixture
async def api(committed: Sessions, database_url: str, scope_check: ScopeCheck) -> AsyncIterator[ApiApp]:
    checks: Mapping[str, ReadinessCheck] = {"model": scope_check.warning}
    async with open_api_app(committed, database_url, checks, model_scope=SCOPE) as opened:
        yield opened


def office(seed: int, app: str) -> dict[str, Json]:
    return document(Site.of(seed), app, "http://office.test")


def test_the_seed_policy_was_made_for_the_office_suite() -> None:
    assert SCOPE.apis.keys() == set(APP_NAMES)
    for seed in range(20):
        apps = {app: parse_document(app, office(seed, app)).operations for app in APP_NAMES}
        assert SCOPE.remark(apps) is None
    assert ModelScope.of("any", {}).remark({"ledger": ["add_entry"]}) is None


def test_a_card_may_name_apis_alone() -> None:
    scope = ModelScope.of("own", {"made_for_apis": ["mail", "ledger"]})
    assert scope.remark({"ledger": ["add_entry"]}) is None
    assert scope.others({"ledger": ["add_entry"], "bank": ["pay"]}) == ["bank"]


async def test_an_api_that_the_model_was_not_made_for_is_remarked_on(api: ApiApp) -> None:
    known = (await api.client.post("/v1/apis", json={"document": office(7, "mail"), "name": "mail"})).json()
    assert known["remarks"] == []
    ready = (await api.client.get("/readyz")).json()
    assert (ready["components"], ready["warnings"]) == ({"model": "ready"}, {})
    body = {"document": Ledger().document("http://ledger.test")}
    [remark] = (await api.client.post("/v1/apis", json={**body, "name": "ledger"})).json()["remarks"]
    assert REMARK in remark
    [remark] = (await api.client.post("/v1/apis", json={**body, "name": "mail"})).json()["remarks"]
    assert "will do nothing useful with mail, which has other operations: set SAGE_MODEL" in remark
    answer = await api.client.get("/readyz")
    assert (answer.status_code, answer.json()["components"]) == (200, {"model": "ready"})
    assert answer.json()["warnings"]["model"].startswith("1 of 1 projects with APIs have some that the model seed")


async def test_an_api_that_only_shares_its_name_with_a_known_one_is_warned_of(
    api: ApiApp, scope_check: ScopeCheck
) -> None:
    async def warnings() -> dict[str, str]:
        await scope_check.look()
        warned: dict[str, str] = (await api.client.get("/readyz")).json()["warnings"]
        return warned

    body = {"name": "mail", "document": Ledger().document("http://ledger.test")}
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    assert "1 of 1 projects with APIs have some" in (await warnings())["model"]
    body = {"name": "mail", "document": office(7, "mail")}
    known = (await api.client.post("/v1/apis", json=body)).json()["operations"]
    assert await warnings() == {}
    await api.client.patch(f"/v1/apis/mail/operations/{known[0]['name']}", json={"name": "put_away"})
    assert "1 of 1 projects" in (await warnings())["model"], "an operation has another name now"


async def test_a_hosted_model_was_made_for_any_api(api: ApiApp, scope_check: ScopeCheck) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id)
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, hosted(entry.id))
        await releases.activate(session, release.id)
    body = {"document": Ledger().document("http://ledger.test"), "name": "ledger"}
    added = (await api.client.post("/v1/apis", json=body)).json()
    await scope_check.look()
    assert (added["remarks"], (await api.client.get("/readyz")).json()["warnings"]) == ([], {})


async def test_its_tasks_say_so_first_and_once(demo: ApprovingProject) -> None:
    project = demo.project
    project.tokenizer = msgspec.structs.replace(project.tokenizer, card=read_card(SEED_DIR))
    task_id = await project.submit()
    await demo.rules({"default": "write"})
    async with project.runner(demo.engine("print(apis.ledger.add_entry(text='one'))")):
        await demo.decide(await demo.waiting(task_id), "approve")  # which makes it two attempts
        await project.ended(task_id)
    events = await project.events(task_id)
    assert [kind for kind, _ in events].count("remark") == 1
    kind, data = events[0]
    assert (kind, REMARK in data["text"]) == ("remark", True)
    shown = (await demo.api.client.get(f"/v1/tasks/{task_id}")).json()
    assert shown["remarks"] == [data["text"]]


def test_a_policy_that_was_trained_with_documents_as_they_are_written_is_known_by_its_card() -> None:
    assert SCOPE.as_written
    assert not ModelScope.of("any", {}).as_written
    cards = {
        "operation_id": ({"prompt_profile": "full", "api_names": "operation_id"}, {"prompt_profile": "brief"}),
        "readable": ({"prompt_profile": "brief", "api_names": "readable"}, {"prompt_profile": "full"}),
    }
    for names, group in cards.items():
        for card in group:
            assert ModelScope.of("any", card).as_written == (names == "operation_id"), card
