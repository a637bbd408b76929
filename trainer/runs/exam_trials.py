"""What the trials of an exam run on: recorded calls, staging servers, or the live APIs."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from app.agent.limits import RolloutLimits
from app.apis.address import address, origin
from app.apis.catalog import App, Catalog, Operation
from app.apis.credentials import BearerTokens, SecretStore
from app.credentials.stored_credentials import StoredCredentials
from app.db.database import Sessions
from app.errors import HostError, InvalidError
from app.gateway.certificates import Certificates
from app.gateway.http_client import open_client
from app.gateway.recorded_calls import CallKey, call_key
from app.project.staging import StagingApi
from app.records import Call, Trajectory
from app.release.catalogs import Catalogs
from app.release.project_secrets import ProjectSecrets
from app.release.tool_documents import ApiDocument
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.environments.exam.api_trials import ApiTrials
from trainer.environments.exam.exam_environment import Ground, Trials
from trainer.environments.exam.recorded_trials import RecordedTrials
from trainer.run_job import Job


class ProjectApis(msgspec.Struct, frozen=True):
    """The APIs that a project's active release gives its tasks, and their staging servers."""

    documents: Sequence[ApiDocument]
    staging: Mapping[str, StagingApi]


@asynccontextmanager
async def open_trials(
    ground: Ground, job: Job, sessions: Sessions, apis: ProjectApis, records: Sequence[Trajectory]
) -> AsyncIterator[Trials]:
    """Raises InvalidError for staging that is incomplete, or that is no other server than production."""
    catalog = await Catalogs(sessions).of(apis.documents)
    limits = RolloutLimits.of(job.deployment).session
    async with ForkedSandbox() as sandbox:
        if ground == "recorded":
            yield RecordedTrials(catalog, sandbox, limits, constant_reads(records, catalog.is_read))
            return
        servers = _live(job, sessions, catalog)
        if ground == "staging":
            servers = await _staging(job, sessions, apis, catalog)
        private = job.deployment.allow_private_hosts
        certificates = Certificates.of(job.deployment)
        opened = open_client(allow_private_hosts=private, origins=servers.origins, certificates=certificates)
        async with opened as client:
            yield ApiTrials(
                catalog=servers.catalog,
                client=client,
                credentials=servers.tokens or StoredCredentials(sessions, client, apis.documents),
                store=servers.store,
                sandbox=sandbox,
                limits=limits,
                timeout=job.deployment.api_timeout_seconds,
                read_only=ground == "live",
                resets=servers.resets,
            )


class _Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Where calls go, and with which secrets."""

    catalog: Catalog
    tokens: BearerTokens | None  # None: those of production
    store: SecretStore
    origins: frozenset[str] | None = None  # that alone may be reached; None: all
    resets: dict[str, str] = {}


def _live(job: Job, sessions: Sessions, catalog: Catalog) -> _Servers:
    store = ProjectSecrets(sessions, job.project_id)
    return _Servers(catalog=catalog, tokens=None, store=store)


async def _staging(job: Job, sessions: Sessions, apis: ProjectApis, catalog: Catalog) -> _Servers:
    moved = staged(catalog, apis.staging)
    staging = {name: each for name, each in apis.staging.items() if name in moved.apps}
    store = ProjectSecrets(sessions, job.project_id)
    tokens = {name: each.token_secret for name, each in staging.items() if each.token_secret is not None}
    try:
        bearers = BearerTokens({name: await store.value(secret) for name, secret in tokens.items()})
    except HostError as error:
        raise InvalidError(f"staging: {error.message}") from error
    names = {old: new for each in staging.values() for old, new in each.secrets.items()}
    return _Servers(
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


def constant_reads(records: Iterable[Trajectory], is_read: Callable[[str], bool]) -> dict[CallKey, Call]:
    """Reads that several tasks made, and that gave all of them the same result."""
    results: dict[CallKey, dict[bytes, Call]] = defaultdict(dict)
    tasks: dict[CallKey, set[UUID]] = defaultdict(set)
    for record in records:
        for call in record.calls:
            if is_read(call.api) and call.error is None:
                results[call_key(call)][msgspec.json.encode(call.result)] = call
                tasks[call_key(call)].add(record.task.id)
    return {
        key: next(iter(found.values()))
        for key, found in results.items()
        if len(found) == 1 and len(tasks[key]) > 1
    }
