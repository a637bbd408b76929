"""What the trials of an exam run on: recorded calls, staging servers, or the live APIs, which are only read.

Staging servers are called instead of those of production, with credentials of their own, and restored before
each trial: by an operation of their API, or a signed POST.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID, uuid4

import httpx
import msgspec

from app.agent.rollout import RolloutLimits
from app.apis.approvals.gate import ApprovalGate
from app.apis.calls.gateway import Gateway
from app.apis.calls.live_calls import Caller
from app.apis.calls.network import Certificates, OwnServices, open_client
from app.apis.calls.recorded_calls import CallKey, RecordedCalls, call_key
from app.apis.catalog import App, Catalog
from app.apis.credentials.credential import Credential, Credentials, SecretStore, StaticCredentials, checked
from app.apis.credentials.schemes import OAUTH_KINDS
from app.apis.credentials.stored_credentials import StoredCredentials
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import SCHEME, McpCommand, McpServers, read_commands
from app.apis.servers import CalledServers, refuse_production, service
from app.base.errors import HostError, InvalidError, StagingError
from app.base.values import GOOD, Call, Json, Stop, Trajectory
from app.db.database import Sessions
from app.db.lease import staging_lock
from app.projects.settings import ProjectSettings, StagingApi, StagingCredential
from app.projects.webhook_signing import signing_key
from app.projects.webhooks import PostError, SignedPost, post, status_problem
from app.releases.tools import ApiDocument, Catalogs, ProjectSecrets
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox, SessionLimits
from app.tasks.verification import score
from trainer.environment import Verdict
from trainer.exam.environment import ExamItem, Ground, Trials, verdict_of
from trainer.run_job import Job

_CHECK_CALLS = 200
_UNKNOWN = Verdict(0, 1, ("what the APIs would have answered is not recorded",), known=False)
_EVENT = "staging.reset"
_RESET_SECONDS = 60  # until a message is answered
_RESET_PAUSES = (1.0, 4.0)  # seconds before a reset that failed is tried again
_REFERENCE = "secret:"


@dataclass(frozen=True)
class RecordedTrials:
    """Implements `Trials`. A trial is right if it made the changes of the solved task and gave its answer, or if
    the task's check says so.
    """

    catalog: Catalog
    sandbox: Sandbox
    limits: SessionLimits
    others: Mapping[CallKey, Call]  # reads that gave every task the same result

    def can_judge(self, item: ExamItem) -> bool:
        record = item.record
        return record is not None and record.stop is Stop.COMPLETED and (item.score or 0.0) >= GOOD

    @asynccontextmanager
    async def open(self, item: ExamItem) -> AsyncIterator["RecordedWorld"]:
        assert item.record is not None  # `can_judge`
        recording = RecordedCalls(item.record.calls, self.catalog.is_read, self.others)
        async with httpx.AsyncClient(transport=_Unreachable()) as client:
            yield RecordedWorld(item, self, recording, client)

    async def judge(self, world: "RecordedWorld", trajectory: Trajectory) -> Verdict:
        item = world.item
        assert item.record is not None
        if trajectory.stop is Stop.IN_DOUBT:
            return _UNKNOWN
        if trajectory.stop is not Stop.COMPLETED:
            return Verdict(0, 1, (f"it ended with {trajectory.stop}",))
        same = world.recording.complete and trajectory.answer == item.record.answer
        if same or item.check is None:
            return Verdict(int(same), 1, () if same else ("other changes or another answer than recorded",))
        gateway = world.open_gateway(_CHECK_CALLS, read_only=True)
        found = await _checked(item, self, gateway, trajectory.answer)
        return found if gateway.in_doubt is None else _UNKNOWN


class RecordedWorld:
    """One trial. Implements `World`, with a gateway of its own."""

    def __init__(
        self, item: ExamItem, trials: RecordedTrials, recording: RecordedCalls, client: httpx.AsyncClient
    ) -> None:
        self.item, self.task, self.now = item, item.task, item.now
        self.catalog, self.client, self.recording = trials.catalog, client, recording
        self._trials = trials

    def open_gateway(self, max_calls: int, *, read_only: bool = False) -> Gateway:
        return Gateway(
            self.catalog,
            self.client,
            instruction=self.task.instruction,
            variables=self.task.variables,
            store=_NoSecrets(),
            read_only=read_only,
            max_calls=max_calls,
            recording=self.recording,
        )

    async def verify(self, trajectory: Trajectory) -> Verdict:
        return await self._trials.judge(self, trajectory)


class _NoSecrets:
    """Implements `SecretStore`: nothing is sent, so nothing needs the real values."""

    async def value(self, name: str) -> str:  # noqa: ARG002
        return "***"


class _Unreachable(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("trials on recorded calls reach no network", request=request)


class ResetError(Exception):
    """A reset failed. `again`: another attempt may succeed."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


Reset: TypeAlias = Callable[[Gateway], Awaitable[None]]
"""Restores one server; the gateway calls the staging servers. Raises ResetError."""


async def _reset_by_operation(app: str, operation: str, gateway: Gateway) -> None:
    """Call an operation without arguments."""
    try:
        await gateway(f"{app}.{operation}", [], {})
    except HostError as error:
        reason = f"{operation}() raised {error.kind}: {error.message}"
        raise ResetError(reason, again=error.kind == "ApiError") from error


async def _reset_by_message(
    client: httpx.AsyncClient, webhook: "ResetWebhook", data: dict[str, str], gateway: Gateway
) -> None:
    """Send a POST that is signed as messages to webhooks are. It is done once that is answered."""
    del gateway
    body = msgspec.json.encode({"type": _EVENT, "timestamp": datetime.now(UTC).isoformat(), "data": data})
    message = SignedPost(webhook.url, webhook.key, f"msg_{uuid4().hex}", body)
    try:
        status, _ = await post(client, message, seconds=_RESET_SECONDS)
    except PostError as error:
        raise ResetError(f"reset_url: {error}", again=True) from error
    if (problem := status_problem(status)) is not None:
        raise ResetError(f"reset_url: {problem}", again=status >= 500)


@dataclass(frozen=True, kw_only=True)
class ServerTrials:
    """Implements `Trials`. A task's check decides, so a task without one cannot be judged."""

    catalog: Catalog
    client: httpx.AsyncClient
    credentials: Credentials
    store: SecretStore
    sandbox: Sandbox
    limits: SessionLimits
    timeout: float  # seconds of a call
    callers: Mapping[str, Caller] = field(default_factory=dict)  # of protocols that are more than HTTP
    read_only: bool
    approvals: ApprovalGate | None = None  # calls that wait for a person are not made
    resets: Mapping[str, Reset] = field(default_factory=dict)  # by app, before each trial
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))  # for trials at once
    alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext  # entered for each trial

    def can_judge(self, item: ExamItem) -> bool:
        """Where trials only read, also not a task that changed something when it was served."""
        if item.check is None:
            return False
        if not self.read_only:
            return True
        reads = self.catalog.is_read
        return item.record is not None and all(reads(call.api) for call in item.record.calls)

    @asynccontextmanager
    async def open(self, item: ExamItem) -> AsyncIterator["ServerWorld"]:
        """Raises StagingError if the APIs cannot be reset."""
        async with self.slots, self.alone():
            world = ServerWorld(item, self)
            await world.reset()
            yield world


class ServerWorld:
    """One trial. Implements `World`, with a gateway of its own."""

    def __init__(self, item: ExamItem, trials: ServerTrials) -> None:
        self.item, self.task, self.now = item, item.task, item.now
        self.catalog, self.client = trials.catalog, trials.client
        self._trials = trials
        self._gateway: Gateway | None = None

    async def reset(self) -> None:
        """Raises StagingError."""
        for app, reset in self._trials.resets.items():
            await self._reset(app, reset)

    async def _reset(self, app: str, reset: Reset) -> None:
        for pause in (*_RESET_PAUSES, None):
            try:
                return await reset(self._open(1, read_only=False))
            except ResetError as error:
                if pause is None or not error.again:
                    raise StagingError(f"the staging server of {app} cannot be reset: {error}") from error
                await asyncio.sleep(pause)

    def open_gateway(self, max_calls: int) -> Gateway:
        self._gateway = self._open(max_calls, read_only=self._trials.read_only)
        return self._gateway

    async def verify(self, trajectory: Trajectory) -> Verdict:
        if self._gateway is not None and self._gateway.would_write:
            return Verdict(0, 1, (f"it tried to write: {self._gateway.would_write}",), known=False)
        if self._gateway is not None and self._gateway.unreachable:
            return _unreachable(self._gateway)
        if trajectory.stop is not Stop.COMPLETED:
            return Verdict(0, 1, (f"it ended with {trajectory.stop}",))
        gateway = self._open(_CHECK_CALLS, read_only=True)
        found = await _checked(self.item, self._trials, gateway, trajectory.answer)
        return _unreachable(gateway) if gateway.unreachable else found

    def _open(self, max_calls: int, *, read_only: bool) -> Gateway:
        return Gateway(
            self.catalog,
            self.client,
            instruction=self.task.instruction,
            variables=self.task.variables,
            credentials=self._trials.credentials,
            store=self._trials.store,
            read_only=read_only,
            approvals=self._trials.approvals,
            max_calls=max_calls,
            timeout=self._trials.timeout,
            callers=self._trials.callers,
        )


async def _checked(
    item: ExamItem, trials: "RecordedTrials | ServerTrials", gateway: Gateway, answer: Json
) -> Verdict:
    """By the task's check, whose calls go through `gateway`."""
    assert item.check is not None  # `can_judge`
    try:
        value = await score(
            item.check, answer, sandbox=trials.sandbox, gateway=gateway, limits=trials.limits, now=item.now
        )
    except InvalidError as error:
        return Verdict(0, 1, (str(error),))
    return verdict_of(value)


def _unreachable(gateway: Gateway) -> Verdict:
    """A server that is down says nothing about the policy."""
    return Verdict(0, 1, (f"a server cannot be reached: {gateway.unreachable}",), known=False)


async def staging_credentials(
    apps: Mapping[str, App], staging: Mapping[str, StagingApi], store: SecretStore
) -> StaticCredentials:
    """Raises InvalidError that names the field, or the secret that is not stored."""
    tokens, credentials = {}, {}
    for name, each in staging.items():
        if each.token_secret is not None:
            tokens[name] = await stored_secret(store, each.token_secret)
        schemes = each.credentials.items()
        credentials[name] = {
            scheme: await _credential(apps[name], scheme, given, store) for scheme, given in schemes
        }
    return StaticCredentials(credentials, tokens)


async def stored_secret(store: SecretStore, name: str) -> str:
    try:
        return await store.value(name)
    except HostError as error:
        raise InvalidError(f"staging: {error.message}") from error


async def _credential(app: App, scheme: str, given: StagingCredential, store: SecretStore) -> Credential:
    where = f"staging.{app.name}"
    fields = msgspec.to_builtins(given)
    for name in ("value", "password"):
        if name in fields:
            fields[name] = await stored_secret(store, fields[name].removeprefix(_REFERENCE))
    try:
        credential, kind = checked(scheme, msgspec.convert(fields, Credential), app.schemes.get(scheme))
    except msgspec.ValidationError as error:
        raise InvalidError(f"{where}.credentials.{scheme}: {error}") from error
    except InvalidError as error:
        raise InvalidError(f"{where}.{error}") from error
    if kind in OAUTH_KINDS and credential.value is None:
        raise InvalidError(
            f"{where}.credentials.{scheme}: trials ask no authorization server for tokens: give one that lasts, "
            "as `value`"
        )
    return credential


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
    operations = {name: msgspec.structs.replace(each, server=None) for name, each in app.operations.items()}
    return msgspec.structs.replace(
        app, server=staging.server, operations=operations, trusted=True, token_origins=()
    )


class StagingSecrets:
    """Implements `SecretStore`: for each bound secret another one, and none without."""

    def __init__(self, store: SecretStore, names: Mapping[str, str]) -> None:
        self._store = store
        self._names = names

    async def value(self, name: str) -> str:
        if name not in self._names:
            raise HostError("PermissionError", f"staging gets no {name!r}: name what it gets in staging.secrets")
        return await self._store.value(self._names[name])


class ProjectApis(msgspec.Struct, frozen=True):
    """The APIs that a project's active release gives its tasks, and the settings that say how trials call them."""

    documents: Sequence[ApiDocument]
    settings: ProjectSettings


@asynccontextmanager
async def open_trials(
    ground: Ground, job: Job, sessions: Sessions, apis: ProjectApis, records: Sequence[Trajectory]
) -> AsyncIterator[Trials]:
    """Raises InvalidError for staging that is incomplete, or that is no other server than production."""
    catalog = await Catalogs(sessions).of(apis.documents)
    async with ForkedSandbox() as sandbox:
        if ground == "recorded":
            limits = RolloutLimits.of(job.deployment).session
            yield RecordedTrials(catalog, sandbox, limits, constant_reads(records, catalog.is_read))
            return
        async with _server_trials(ground, job, sessions, apis, catalog, sandbox) as trials:
            yield trials


@asynccontextmanager
async def _server_trials(
    ground: Ground, job: Job, sessions: Sessions, apis: ProjectApis, catalog: Catalog, sandbox: Sandbox
) -> AsyncIterator[ServerTrials]:
    store = ProjectSecrets(sessions, job.project_id)
    if ground == "staging":
        servers = await staging_servers(catalog, apis.settings.staging, store)
    else:
        servers = TrialServers(catalog=catalog, store=store, commands=_commands(job, catalog))
    open_bounded = partial(
        open_client,
        allow_private_hosts=job.deployment.allow_private_hosts,
        certificates=Certificates.of(job.deployment),
        own=OwnServices.of(job.deployment),
    )
    seconds = job.deployment.api_timeout_seconds
    alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    if servers.only is not None:  # each trial has the staging servers to itself; on live ones it only reads
        alone = partial(staging_lock, sessions, [service(url) for url in servers.only])
    async with (
        open_bounded(only=servers.only) as client,
        open_bounded(only=[each.url for each in servers.webhooks.values()]) as to_webhooks,
        McpServers(client, servers.commands) as mcp,
    ):
        yield ServerTrials(
            catalog=servers.catalog,
            client=client,
            credentials=servers.credentials or StoredCredentials(sessions, client, apis.documents),
            store=servers.store,
            sandbox=sandbox,
            limits=RolloutLimits.of(job.deployment).session,
            timeout=seconds,
            callers=mcp_callers(mcp, job.project_id, "", seconds),
            read_only=ground == "live",
            approvals=ApprovalGate(apis.settings.approvals) if ground == "live" else None,
            resets=_resets(servers, job, to_webhooks),
            alone=alone,
        )


def _resets(servers: TrialServers, job: Job, client: httpx.AsyncClient) -> dict[str, Reset]:
    called: dict[str, Reset] = {
        app: partial(_reset_by_operation, app, name) for app, name in servers.resets.items()
    }
    posted: dict[str, Reset] = {
        app: partial(_reset_by_message, client, each, {"project": job.project, "api": app})
        for app, each in servers.webhooks.items()
    }
    return called | posted


def _commands(job: Job, catalog: Catalog) -> dict[str, McpCommand]:
    """The MCP servers of this machine. Raises InvalidError for an app whose command is not here."""
    commands = read_commands(job.deployment.mcp_commands)
    for app in catalog.apps.values():
        command = app.server.removeprefix(SCHEME)
        if app.server.startswith(SCHEME) and command not in commands:
            raise InvalidError(
                f"{app.name} is the MCP server {app.server}, which cannot be called here: name {command} in the "
                "file SAGE_MCP_COMMANDS of the worker, or examine on recorded calls (exam?name=NAME)"
            )
    return commands


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
