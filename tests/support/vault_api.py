"""The API of `SecuredService`, registered as `vault` and used as tasks and people do."""

from typing import Any
from uuid import UUID

import httpx

from app.apis import store as apis
from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.apis.credentials.stored_credentials import StoredCredentials
from app.apis.documents.protocols import parse_document
from app.db.database import Sessions
from app.releases import tools
from tests.support.api_app import ApiApp
from tests.support.secured_service import CLIENT, KEY, PASSWORD, SECRET, SecuredService

STATIC: dict[str, dict[str, Any]] = {
    "header_key": {"value": KEY},
    "query_key": {"value": KEY},
    "cookie_key": {"value": KEY},
    "basic": {"username": "iris", "password": PASSWORD},
    "bearer": {"value": KEY},
    "token": {"value": KEY},
    "client": {"client_id": CLIENT, "client_secret": SECRET},
    "login": {"username": "iris", "password": PASSWORD},
}


async def register(api: ApiApp, service: SecuredService, **fields: Any) -> dict[str, Any]:
    sent = {"name": "vault", "document": service.document(), **fields}
    answer = await api.client.post("/v1/apis", json=sent)
    assert answer.status_code == 201, answer.text
    return {each["scheme"]: each for each in answer.json()["credentials"]}


async def credentials_of(api: ApiApp) -> dict[str, Any]:
    shown = await api.client.get("/v1/apis/vault")
    assert shown.status_code == 200, shown.text
    return {each["scheme"]: each for each in shown.json()["credentials"]}


async def gateway(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient, principal: str = "", **rules: Any
) -> Gateway:
    """As a runner opens it for a task of the principal."""
    return await open_gateway(api.sessions, api.demo.id, service.document(), client, principal, **rules)


async def open_gateway(
    sessions: Sessions,
    project_id: UUID,
    document: dict[str, Any],
    client: httpx.AsyncClient,
    principal: str = "",
    **rules: Any,
) -> Gateway:
    async with sessions() as session:
        rows = await apis.of_project(session, project_id)
        documents = [await tools.api_document(session, row) for row in rows]
    credentials = StoredCredentials(sessions, client, documents, principal)
    catalog = Catalog({"vault": parse_document("vault", document)})
    return Gateway(catalog, client, credentials=credentials, **rules)


async def connect(api: ApiApp, service: SecuredService, scheme: str, **params: str) -> httpx.Response:
    """As a person does: open the address, consent, and come back."""
    asked = await api.client.get("/v1/apis/vault/authorize", params={"scheme": scheme, **params})
    assert asked.status_code == 200, asked.text
    back = service.consent(asked.json()["url"])
    assert back.pop("callback").endswith("/oauth/callback")
    return await api.client.get("/oauth/callback", params=back, headers={"Authorization": ""})
