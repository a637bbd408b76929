"""The staging servers of a project's APIs, which trials call instead of those of production."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from app.apis.catalog import App, Catalog, Operation
from app.apis.credentials import Credentials, SecretStore
from app.apis.reachable import CalledServers, refuse_production
from app.errors import HostError, InvalidError
from app.gateway.mcp_client.mcp_commands import McpCommand
from app.project.staging import StagingApi
from app.project.webhook import signing_key
from trainer.runs.staging_credentials import staging_credentials, stored_secret


class ResetWebhook(NamedTuple):
    """Where a reset is asked for, and the key that signs it."""

    url: str
    key: bytes


class TrialServers(msgspec.Struct, frozen=True, kw_only=True):
    """Where calls go, and with which secrets."""

    catalog: Catalog
    credentials: Credentials | None = None  # None: those of production
    store: SecretStore
    only: tuple[str, ...] | None = None  # the URLs of those that alone may be reached; None: all
    resets: dict[str, str] = {}  # operations by app
    webhooks: dict[str, ResetWebhook] = {}  # that reset, by app
    commands: Mapping[str, McpCommand] = {}  # the MCP servers that may be started here


async def staging_servers(catalog: Catalog, staging: Mapping[str, StagingApi], store: SecretStore) -> TrialServers:
    """Raises InvalidError for staging that is incomplete, or that is no other server than production."""
    moved = await asyncio.to_thread(staged, catalog, staging)
    staging = {name: each for name, each in staging.items() if name in moved.apps}
    names = {old: new for each in staging.values() for old, new in each.secrets.items()}
    return TrialServers(
        catalog=moved,
        credentials=await staging_credentials(moved.apps, staging, store),
        store=StagingSecrets(store, names),
        only=tuple(each.server for each in staging.values()),
        resets={name: each.reset for name, each in staging.items() if each.reset is not None},
        webhooks={name: await _webhook(name, each, store) for name, each in staging.items() if each.reset_url},
    )


async def _webhook(app: str, staging: StagingApi, store: SecretStore) -> ResetWebhook:
    assert staging.reset_url is not None
    assert staging.reset_secret is not None
    secret = await stored_secret(store, staging.reset_secret)
    return ResetWebhook(staging.reset_url, signing_key(secret, f"staging.{app}.reset_secret"))


def staged(catalog: Catalog, staging: Mapping[str, StagingApi]) -> Catalog:
    """The catalog with all calls going to the staging servers.

    Raises InvalidError for an API without one, or whose staging server is one that tasks call, or could call.
    """
    if missing := sorted(catalog.apps.keys() - staging.keys()):
        raise InvalidError(f"staging has no server for {', '.join(missing)}: name it in the project's settings")
    refuse_production({name: staging[name] for name in catalog.apps}, map(CalledServers.of, catalog.apps.values()))
    return Catalog({name: _staged(app, staging[name]) for name, app in catalog.apps.items()})


def _staged(app: App, staging: StagingApi) -> App:
    if staging.reset is not None and staging.reset not in app.operations:
        raise InvalidError(f"staging.{app.name}.reset: {app.name} has no operation {staging.reset!r}")
    if not staging.is_restored and not all(each.safe for each in app.operations.values()):
        raise InvalidError(
            f"staging.{app.name} has no reset: trials would meet what earlier ones changed. Name `reset` or "
            "`reset_url`, or say `stateless`, if what one trial changes there concerns no other"
        )
    operations = {name: _moved(each) for name, each in app.operations.items()}
    return msgspec.structs.replace(
        app, server=staging.server, operations=operations, trusted=True, token_origins=()
    )


def _moved(operation: Operation) -> Operation:
    return msgspec.structs.replace(operation, server=None)


class StagingSecrets:
    """Implements `SecretStore`: for each bound secret another one, and none without."""

    def __init__(self, store: SecretStore, names: Mapping[str, str]) -> None:
        self._store = store
        self._names = names

    async def value(self, name: str) -> str:
        if name not in self._names:
            raise HostError("PermissionError", f"staging gets no {name!r}: name what it gets in staging.secrets")
        return await self._store.value(self._names[name])
