"""The staging servers of a project's APIs, which trials call instead of those of production."""

from collections.abc import Mapping

import msgspec

from app.apis.address import address, origin
from app.apis.catalog import App, Catalog, Operation
from app.apis.credentials import BearerTokens, SecretStore
from app.errors import HostError, InvalidError
from app.gateway.mcp_client.mcp_commands import McpCommand
from app.project.staging import StagingApi


class TrialServers(msgspec.Struct, frozen=True, kw_only=True):
    """Where calls go, and with which secrets."""

    catalog: Catalog
    tokens: BearerTokens | None = None  # None: those of production
    store: SecretStore
    origins: frozenset[str] | None = None  # that alone may be reached; None: all
    resets: dict[str, str] = {}
    commands: Mapping[str, McpCommand] = {}  # the MCP servers that may be started here


async def staging_servers(catalog: Catalog, staging: Mapping[str, StagingApi], store: SecretStore) -> TrialServers:
    """Raises InvalidError for staging that is incomplete, or that is no other server than production."""
    moved = staged(catalog, staging)
    staging = {name: each for name, each in staging.items() if name in moved.apps}
    tokens = {name: each.token_secret for name, each in staging.items() if each.token_secret is not None}
    try:
        bearers = BearerTokens({name: await store.value(secret) for name, secret in tokens.items()})
    except HostError as error:
        raise InvalidError(f"staging: {error.message}") from error
    names = {old: new for each in staging.values() for old, new in each.secrets.items()}
    return TrialServers(
        catalog=moved,
        tokens=bearers,
        store=StagingSecrets(store, names),
        origins=frozenset(origin(each.server) for each in staging.values()),
        resets={name: each.reset for name, each in staging.items() if each.reset is not None},
    )


def staged(catalog: Catalog, staging: Mapping[str, StagingApi]) -> Catalog:
    """The catalog with all calls going to the staging servers.

    Raises InvalidError for an API without one, or whose staging server is one that tasks call.
    """
    if missing := sorted(catalog.apps.keys() - staging.keys()):
        raise InvalidError(f"staging has no server for {', '.join(missing)}: name it in the project's settings")
    production = {found for app in catalog.apps.values() for found in _origins(app)}
    return Catalog({name: _staged(app, staging[name], production) for name, app in catalog.apps.items()})


def _staged(app: App, staging: StagingApi, production: set[str]) -> App:
    if origin(staging.server) in production:
        raise InvalidError(
            f"the staging server of {app.name} is one that tasks call, {staging.server}: trials would change what "
            "is live. Name another one in the project's settings"
        )
    if staging.reset is not None and staging.reset not in app.operations:
        raise InvalidError(f"staging.{app.name}.reset: {app.name} has no operation {staging.reset!r}")
    operations = {name: _moved(each) for name, each in app.operations.items()}
    return msgspec.structs.replace(app, server=staging.server, operations=operations, token_origins=())


def _moved(operation: Operation) -> Operation:
    return msgspec.structs.replace(operation, server=None)


def _origins(app: App) -> set[str]:
    """Of all servers that tasks may call, as far as they are known without a task's variables."""
    servers = {app.server, *(each.server for each in app.operations.values() if each.server is not None)}
    found = set()
    for server in servers:
        try:
            found.add(origin(address(app, server, {})))
        except ValueError:  # it needs a value that only a task gives
            continue
    return found


class StagingSecrets:
    """Implements `SecretStore`: for each bound secret another one, and none without."""

    def __init__(self, store: SecretStore, names: Mapping[str, str]) -> None:
        self._store = store
        self._names = names

    async def value(self, name: str) -> str:
        if name not in self._names:
            raise HostError("PermissionError", f"staging gets no {name!r}: name what it gets in staging.secrets")
        return await self._store.value(self._names[name])
