"""What the trials of an exam run on: recorded calls, staging servers, or the live APIs."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from uuid import UUID

import httpx
import msgspec

from app.agent.limits import RolloutLimits
from app.apis.address import service
from app.apis.catalog import Catalog
from app.credentials.stored_credentials import StoredCredentials
from app.db.advisory_locks import staging_lock
from app.db.database import Sessions
from app.errors import InvalidError
from app.gateway.approval_gate import ApprovalGate
from app.gateway.certificates import Certificates
from app.gateway.http_client import open_client
from app.gateway.mcp_client.connection_pool import McpServers
from app.gateway.mcp_client.mcp_calls import mcp_callers
from app.gateway.mcp_client.mcp_commands import SCHEME, McpCommand, read_commands
from app.gateway.own_services import OwnServices
from app.gateway.recorded_calls import CallKey, call_key
from app.project.project_settings import ProjectSettings
from app.records import Call, Trajectory
from app.release.catalogs import Catalogs
from app.release.project_secrets import ProjectSecrets
from app.release.tool_documents import ApiDocument
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox
from trainer.exam.api_trials import ApiTrials
from trainer.exam.exam_environment import Ground, Trials
from trainer.exam.recorded_trials import RecordedTrials
from trainer.exam.staging_reset import Reset, ResetMessage, ResetOperation
from trainer.run_job import Job
from trainer.runs.staging_servers import TrialServers, staging_servers


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
        async with _api_trials(ground, job, sessions, apis, catalog, sandbox) as trials:
            yield trials


@asynccontextmanager
async def _api_trials(
    ground: Ground, job: Job, sessions: Sessions, apis: ProjectApis, catalog: Catalog, sandbox: Sandbox
) -> AsyncIterator[ApiTrials]:
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
    async with (
        open_bounded(only=servers.only) as client,
        open_bounded(only=[each.url for each in servers.webhooks.values()]) as to_webhooks,
        McpServers(client, servers.commands) as mcp,
    ):
        yield ApiTrials(
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
            alone=_alone(servers, sessions),
        )


def _alone(servers: TrialServers, sessions: Sessions) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Each trial has the staging servers to itself. On live servers it only reads."""
    if servers.only is None:
        return nullcontext
    return partial(staging_lock, sessions, [service(url) for url in servers.only])


def _resets(servers: TrialServers, job: Job, client: httpx.AsyncClient) -> dict[str, Reset]:
    called: dict[str, Reset] = {app: ResetOperation(app, name) for app, name in servers.resets.items()}
    posted = {
        app: ResetMessage(client=client, url=each.url, key=each.key, project=job.project, app=app)
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
