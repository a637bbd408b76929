"""Credentials of staging: by security scheme, as the API itself has them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.apis import store as apis
from app.base.errors import InvalidError
from app.db.tables import ExamSource
from app.projects import secrets
from app.projects import store as projects
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.examined import examined
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import block
from tests.support.secured_service import KEY, PASSWORD, SecuredService

ASKED = block("apis.supervisor.complete_task(answer=apis.vault.who_{0}()['user'])")
STORED = {"value": "secret:staging-key"}


@pytest.fixture
async def service(project: LedgerProject) -> AsyncIterator[SecuredService]:
    """The staging server of the project's only API."""
    opened = SecuredService()
    async with opened.listening():
        document = opened.document() | {"servers": [{"url": "http://live.test"}]}
        async with project.sessions.begin() as session:
            await apis.delete(session, project.id, "ledger")
            await apis.put(session, project.id, "vault", source="upload", document=document, digest="1")
            await secrets.put(session, project.id, "staging-key", KEY)
            await secrets.put(session, project.id, "staging-word", PASSWORD)
            await secrets.put(session, project.id, "two-lines", "a\nb")
        yield opened


async def asked(project: LedgerProject, service: SecuredService, way: str, **credentials: Any) -> bool:
    """Whether staging knows who asks."""
    staging = {"vault": {"server": service.url, "credentials": credentials, "stateless": True}}
    task = NewExamTask(
        instruction="who am I?", check_code=f"score = float(apis.vault.who_{way}()['user'] == answer)"
    )
    async with project.sessions.begin() as session:
        await projects.change_settings(session, project.id, {"staging": None})
        await projects.change_settings(session, project.id, {"staging": staging})
        await exams.put(session, project.id, "mine", ExamSource.SUBMITTED, [task])
    [result] = await examined(project, "staging", lambda *_: ASKED.replace("{0}", way))
    return result.success


@pytest.mark.parametrize(
    ("way", "credential"),
    [
        ("header_key", STORED),
        ("query_key", STORED),
        ("cookie_key", STORED),
        ("bearer", STORED),
        ("token", STORED),
        ("basic", {"username": "iris", "password": "secret:staging-word"}),
    ],
)
async def test_staging_gets_the_credentials_that_its_schemes_ask_for(
    project: LedgerProject, service: SecuredService, way: str, credential: dict[str, str]
) -> None:
    assert await asked(project, service, way, **{way: credential})
    assert not await asked(project, service, way)


async def test_an_oauth_token_that_lasts_is_sent_as_it_is(project: LedgerProject, service: SecuredService) -> None:
    service.issued[KEY] = "iris"
    assert await asked(project, service, "client", client=STORED)


async def test_a_scheme_that_the_document_does_not_declare_says_where_it_goes(
    project: LedgerProject, service: SecuredService
) -> None:
    own = STORED | {"place": "header", "name": "X-Api-Key"}
    assert await asked(project, service, "header_key", mine=own)


@pytest.mark.parametrize(
    ("credentials", "error"),
    [
        ({"client": {"username": "iris"}}, "staging.vault.credentials.client: trials ask no authorization server"),
        ({"basic": STORED}, "staging.vault.credentials.basic: basic needs `username` and `password`"),
        ({"mine": STORED}, "staging.vault.credentials.mine: the document declares no scheme of this name"),
        ({"bearer": {"value": "secret:none"}}, "staging: the secret 'none' that this call needs is not stored"),
        ({"bearer": {"value": "secret:two-lines"}}, "staging.vault.credentials.bearer: Expected `str` matching"),
        ({"bearer": {"value": KEY}}, "Expected `str` matching regex '^secret:"),
    ],
)
async def test_credentials_that_do_not_fit_are_refused(
    project: LedgerProject, service: SecuredService, credentials: dict[str, Any], error: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        await asked(project, service, "bearer", **credentials)
    assert error in str(caught.value)
    assert KEY not in str(caught.value)
