"""Parameters that the gateway fills in with stored secrets: the agent logs in without seeing the password."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.apis.calls.arguments import filled
from app.apis.catalog import BoundParameter, Operation, Parameter
from app.base.errors import HostError
from app.db import results
from app.db.database import Sessions
from app.db.tables import TaskState
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.support.vault import PASSWORD, Vault
from tests.tasks.test_secrets_stay_secret import dump

LOG_IN = "apis.vault.log_in(user='iris')"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@pytest.fixture
def vault() -> Vault:
    return Vault()


@pytest.fixture
async def project(
    api: ApiApp, vault: Vault, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[LedgerProject]:
    """The API's project; the vault's password is bound to the secret `mail`, which is not stored yet."""
    body = {"name": "vault", "document": vault.document(), "bind": {"log_in": {"password": "secret:mail"}}}
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    async with vault.client() as client:
        yield LedgerProject(api.sessions, bare_sandbox, byte_tokenizer(tmp_path), Ledger(), client, api.demo.id)


async def _store(api: ApiApp, value: str = PASSWORD) -> None:
    answer = await api.client.put("/v1/secrets/mail", json={"value": value})
    assert answer.status_code == 200, answer.text


async def _observed(project: LedgerProject, code: str) -> str:
    """What the policy reads after its code ran."""
    engine = ScriptedEngine(project.tokenizer, block(code), block("apis.supervisor.complete_task(answer=1)"))
    async with project.runner(engine):
        task = await project.ended(await project.submit("log in"))
    assert task.state == TaskState.DONE, task.failure
    return engine.prompts[-1].rpartition("<|im_start|>user")[2]


async def test_the_gateway_logs_in_and_the_agent_never_sees_the_password(
    api: ApiApp, project: LedgerProject, vault: Vault
) -> None:
    await _store(api)
    seen = await _observed(project, f"print(apis.api_docs.show_signatures('vault'))\nprint({LOG_IN})")
    assert vault.log_ins == [PASSWORD]
    assert "log_in(user='iris')" in seen.replace('"', "'")
    assert "you sent ***" in seen
    assert PASSWORD not in seen
    assert "log_in(password" not in seen
    assert PASSWORD not in await dump(project.sessions)


async def test_errors_do_not_return_it_either(api: ApiApp, project: LedgerProject) -> None:
    await _store(api, "not-the-password")
    seen = await _observed(project, LOG_IN)
    assert "*** is wrong" in seen.replace("'", "")
    assert "not-the-password" not in seen


async def test_a_call_that_passes_it_is_refused(api: ApiApp, project: LedgerProject, vault: Vault) -> None:
    await _store(api)
    assert "has no argument 'password'" in await _observed(project, "apis.vault.log_in(password='mine')")
    assert vault.log_ins == []


async def test_without_the_secret_the_call_fails_and_names_it(project: LedgerProject, vault: Vault) -> None:
    assert "the secret 'mail' that this call needs is not stored" in await _observed(project, LOG_IN)
    assert vault.log_ins == []


async def test_secrets_are_listed_without_their_values_and_with_their_last_use(
    api: ApiApp, project: LedgerProject
) -> None:
    await _store(api)
    [before] = (await api.client.get("/v1/secrets")).json()
    await _observed(project, LOG_IN)
    [after] = (await api.client.get("/v1/secrets")).json()
    assert (before["name"], before["used_at"]) == ("mail", None)
    assert after["used_at"] is not None
    assert PASSWORD not in json.dumps(after)
    assert (await api.client.delete("/v1/secrets/mail")).status_code == 204
    assert (await api.client.delete("/v1/secrets/mail")).status_code == 404
    audit = [entry["action"] for entry in (await api.client.get("/v1/audit")).json()["entries"]]
    assert audit[:2] == ["secret deleted", "secret stored"]


async def test_only_administrators_may_read_or_store_secrets(api: ApiApp) -> None:
    headers = await api.key("tasks")
    assert (await api.client.get("/v1/secrets", headers=headers)).status_code == 403
    put = await api.client.put("/v1/secrets/mail", json={"value": "12345"}, headers=headers)
    assert put.status_code == 403


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ({"log_inn": {"password": "secret:mail"}}, "no operation 'log_inn'"),
        ({"log_in": {"pasword": "secret:mail"}}, "no parameter 'pasword'"),
        ({"passphrase": "secret:mail"}, "no parameter 'passphrase'"),
        ({"password": "hunter2"}, "must be `secret:NAME`"),
    ],
)
@pytest.mark.usefixtures("project")
async def test_a_binding_that_does_not_fit_is_refused(api: ApiApp, bind: dict[str, Any], said: str) -> None:
    answer = await api.client.patch("/v1/apis/vault", json={"bind": bind})
    assert answer.status_code == 400
    assert said in str(problem(answer)["detail"])


@pytest.mark.usefixtures("project")
async def test_bindings_can_be_changed_removed_and_survive_a_new_document(api: ApiApp, vault: Vault) -> None:
    def signature(view: dict[str, Any]) -> str:
        return str(next(each["signature"] for each in view["operations"] if each["name"] == "log_in"))

    again = await api.client.post("/v1/apis", json={"name": "vault", "document": vault.document()})
    assert "password" not in signature(again.json())
    removed = await api.client.patch("/v1/apis/vault", json={"bind": None})
    assert "password" in signature(removed.json())
    everywhere = await api.client.patch("/v1/apis/vault", json={"bind": {"password": "secret:mail"}})
    assert "password" not in signature(everywhere.json())
    assert everywhere.json()["bind"] == {"password": "secret:mail"}


async def test_a_bound_secret_is_in_no_trajectory(api: ApiApp, project: LedgerProject) -> None:
    await _store(api)
    engine = ScriptedEngine(
        project.tokenizer, block(f"print({LOG_IN}['welcome'])"), block("apis.supervisor.complete_task()")
    )
    async with project.runner(engine):
        task_id = await project.submit("log in")
        await project.ended(task_id)
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert trajectory.flaw is None, "the policy saw no secret, so its tokens can be trained on"
    assert trajectory.calls[0].arguments == {"user": "iris"}


def test_a_number_that_is_bound_is_sent_as_one_and_anything_else_is_refused() -> None:
    pin = Parameter(name="pin", wire_name="pin", place="query", required=True, schema={"type": "integer"})
    bound = (BoundParameter(pin, "pin"),)
    operation = Operation(app="vault", name="open", method="GET", path="/", summary="", bound=bound)
    assert filled(operation, {}, {"pin": "1234"})[1] == {"pin": 1234}
    for value in ("x", '"7"', "[7]", "true", "NaN", "1e999", ""):
        with pytest.raises(HostError, match="the secret bound to 'pin' is not a number"):
            filled(operation, {}, {"pin": value})
