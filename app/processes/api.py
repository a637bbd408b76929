"""Composes the API process, which accepts tasks and shows them; runners execute them. Its routes, those of the
console, and the dependencies that handlers name.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from litestar import Litestar, Request, Router
from litestar.datastructures import State
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import prompt_hash, prompt_text
from app.apis.approvals.pages import ApprovalPages
from app.apis.approvals.routes import ApprovalController
from app.apis.approvals.store import ApprovalExpiry
from app.apis.calls.network import Certificates, OwnServices, open_client
from app.apis.credentials.routes import CredentialController, client_document, oauth_callback
from app.apis.documents.reader import DocumentReader
from app.apis.documents.routes import ApiChangeController, ApiOperationController, api_readers
from app.apis.double.routes import ApiPracticeController
from app.apis.mcp.connection import read_commands
from app.apis.pages import ApiPage, ApiPages, OperationPage
from app.apis.routes import ApiCallController, ApiController, ApiTrialController
from app.base.processes import base_url, freeze_memory
from app.db.database import reading
from app.db.disk_space import DiskSpace
from app.db.migrate import check_schema
from app.engine.hosted.pages import HostedModelPages
from app.engine.hosted.routes import HostedModelController
from app.engine.model_scope import ModelScope
from app.engine.tokenizer import read_card
from app.machine.health import ScopeCheck, hosted_failures, readiness_checks
from app.machine.pages import HealthPages
from app.machine.parts import Parts, load_parts, open_listener, open_services
from app.machine.routes import REQUESTS, healthz, livez, metrics, readyz, remarks
from app.processes.dependencies import Dependencies
from app.processes.reference import reference_pages
from app.projects.authorization import authorize
from app.projects.home_pages import HomePages
from app.projects.pages import AuditPages, KeyPages, ProjectPages, SecretPages, UsagePages, WebhookPages
from app.projects.routes import (
    AuditController,
    KeyController,
    ProjectController,
    SecretController,
    StatisticsController,
    WebhookController,
)
from app.projects.settings import Limits
from app.projects.webhooks import WebhookSender
from app.releases.bundled_adapter import BundledAdapter
from app.releases.exams.pages import ExamPages
from app.releases.exams.routes import ExamController
from app.releases.hosted_models import HostedModels
from app.releases.pages import ReleaseChangePages, ReleaseComparePages, ReleasePage, ReleasePages
from app.releases.promotion import FirstRelease, Promoter
from app.releases.reconciler import ReleaseReconciler
from app.releases.refresh import ApiRefresh, McpRefresh
from app.releases.routes import (
    CanaryController,
    ReleaseController,
    ReleaseDiffController,
    ShadowController,
    WatchController,
)
from app.releases.swap import AdapterLoader
from app.runs.broker import worker_notifier
from app.runs.datasets import DataRules, DatasetStore
from app.runs.pages import RunDetailPage, RunPages, SchedulePages
from app.runs.routes import (
    DatasetController,
    EnvironmentController,
    RunController,
    RunEventsController,
    ScheduleController,
)
from app.runs.schedule import Serving
from app.skills.pages import SkillChangePages, SkillDetailPage, SkillPages
from app.skills.routes import SkillController, SkillFolderController, SkillRunController
from app.tasks.chat.routes import ChatController, ChatModelController
from app.tasks.events import TaskEventsController
from app.tasks.feedback import FeedbackController
from app.tasks.mcp_server.routes import ToolParts, mcp, running_server
from app.tasks.pages import FeedbackPages, ReplayPages, TaskChanges, TaskDetailPage, TaskPages
from app.tasks.retention import RetentionLoop
from app.tasks.routes import ErasureController, ExportController, JudgeController, RunnerController, TaskController
from app.tasks.verification import VerifierSender
from app.tasks.views import ReplayController, TrajectoryController
from app.web.access import KeyGate, provide_access
from app.web.manual import manual_routes
from app.web.openapi import docs_routes, openapi_config
from app.web.pages import (
    PROBLEM_PAGES,
    SessionPages,
    SignInPages,
    authorize_visit,
    provide_visit,
    secure_headers,
    show_asset,
    show_nothing,
)
from app.web.problem import HANDLERS
from app.web.requests import JsonRequest, answer_options
from app.web.server import Shutdown, log_requests

_PAGES: list[Any] = [
    HomePages,
    TaskPages,
    TaskDetailPage,
    TaskChanges,
    ReplayPages,
    ApprovalPages,
    FeedbackPages,
    ApiPages,
    ApiPage,
    OperationPage,
    SkillPages,
    SkillDetailPage,
    SkillChangePages,
    ReleasePages,
    ReleasePage,
    ReleaseComparePages,
    ReleaseChangePages,
    RunPages,
    RunDetailPage,
    SchedulePages,
    ExamPages,
    HostedModelPages,
    SecretPages,
    ProjectPages,
    KeyPages,
    UsagePages,
    AuditPages,
    WebhookPages,
    HealthPages,
    SessionPages,
    show_nothing,
]
_MAX_BODY_BYTES = 32 << 20  # room for 1,000 tasks of 20,000 characters

OpenDependencies = Callable[[], AbstractAsyncContextManager[Dependencies]]
"""Opens the dependencies when the application starts, and closes them when it stops."""

_CONNECTIONS = 20  # to the database, kept open
_ENDPOINT_SECONDS = 10.0  # of retries, for a hosted model to answer before its release serves
_FETCH_SECONDS = 30.0  # for an OpenAPI document


def console_router() -> Router:
    pages = Router(
        "/",
        route_handlers=_PAGES,
        guards=[authorize_visit],
        dependencies={"visit": Provide(provide_visit)},
    )
    return Router(
        "/console",
        route_handlers=[pages, SignInPages, show_asset],
        middleware=[secure_headers],
        exception_handlers=PROBLEM_PAGES,
        include_in_schema=False,
    )


_CONTROLLERS = [
    TaskController,
    ErasureController,
    TaskEventsController,
    ChatController,
    ChatModelController,
    ApprovalController,
    TrajectoryController,
    ExportController,
    StatisticsController,
    SkillController,
    SkillRunController,
    SkillFolderController,
    FeedbackController,
    JudgeController,
    ApiController,
    ApiChangeController,
    ApiCallController,
    ApiTrialController,
    ApiPracticeController,
    ApiOperationController,
    CredentialController,
    SecretController,
    HostedModelController,
    ProjectController,
    KeyController,
    ReleaseController,
    ReleaseDiffController,
    CanaryController,
    WatchController,
    ShadowController,
    ReplayController,
    AuditController,
    RunController,
    DatasetController,
    ExamController,
    RunEventsController,
    ScheduleController,
    EnvironmentController,
    WebhookController,
    RunnerController,
]


def create_app(open_dependencies: OpenDependencies, others: Sequence[Router] = ()) -> Litestar:
    """`others` are served beside the API."""
    v1 = Router(
        "/v1",
        route_handlers=_CONTROLLERS,
        guards=[authorize],
        security=[{"key": []}],
        dependencies={"access": Provide(provide_access)},
    )

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with open_dependencies() as dependencies:
            app.state["dependencies"] = dependencies
            app.state["key_gate"] = KeyGate()
            shared = {name: getattr(dependencies, name) for name in ToolParts.__struct_fields__}
            async with running_server(ToolParts(**shared)) as app.state["mcp"]:
                yield

    provided = {name: _provide(name) for name in Dependencies.__struct_fields__}
    return Litestar(
        route_handlers=[
            v1,
            healthz,
            livez,
            readyz,
            metrics,
            oauth_callback,
            client_document,
            mcp,
            *docs_routes(),
            *manual_routes(lambda app: reference_pages(app.openapi_schema.to_schema())),
            *others,
        ],
        dependencies={
            "session": Provide(_open_session),
            "readers": Provide(api_readers, sync_to_thread=False),
            **provided,
        },
        exception_handlers=HANDLERS,
        middleware=[log_requests, REQUESTS.middleware, answer_options],
        openapi_config=openapi_config(version("sage-server")),
        request_class=JsonRequest,
        request_max_body_size=_MAX_BODY_BYTES,
        lifespan=[lifespan],
        logging_config=None,
    )


async def _open_session(state: State, request: Request[Any, Any, Any]) -> AsyncIterator[AsyncSession]:
    """One database session per request. Anything not committed when the handler returns is rolled back."""
    sessions = state["dependencies"].sessions
    async with reading(sessions) if request.method == "GET" else sessions() as opened:
        yield opened


def _provide(name: str) -> Provide:
    def provide(state: State) -> object:
        return getattr(state["dependencies"], name)

    return Provide(provide, sync_to_thread=False)


def app(shutdown: Shutdown | None = None) -> Litestar:
    """The application that `uvicorn --factory app.processes.api:app` serves. Raises what `load_parts` raises.

    Services that may still be starting, such as the database or the engine, are checked by /readyz.
    """
    parts = load_parts()
    return create_app(lambda: _open_dependencies(parts, shutdown or Shutdown()), [console_router()])


def _scope(parts: Parts) -> ModelScope:
    """By the card of the model, and of the adapter that it comes with; any, where a hosted one is set."""
    if parts.settings.model_url:
        return ModelScope()
    bundled = BundledAdapter.of(parts.settings.model_dir)
    lessons = read_card(bundled.path) if bundled else {}
    return ModelScope.of(parts.settings.model, {**parts.tokenizer.card, **lessons})


@asynccontextmanager
async def _open_dependencies(parts: Parts, shutdown: Shutdown) -> AsyncIterator[Dependencies]:
    settings = parts.settings
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(open_services(parts, connections=_CONNECTIONS))
        sessions = services.database.sessions
        hosted = HostedModels.of(settings)
        loader = await stack.enter_async_context(
            AdapterLoader(
                services.engine,
                sessions,
                services.adapters,
                partial(hosted.open, sessions, patience=_ENDPOINT_SECONDS),
            )
        )
        prompt = prompt_hash(parts.profile, parts.tokenizer)
        scope = _scope(parts)
        promoter = Promoter(sessions, loader, prompt)
        reconciler = await stack.enter_async_context(
            ReleaseReconciler(sessions, promoter, prompt, prompt_text=prompt_text(parts.profile, parts.tokenizer))
        )
        listener = await stack.enter_async_context(open_listener(settings))
        others: dict[str, Any] = {
            "allow_private_hosts": settings.allow_private_hosts,
            "certificates": Certificates.of(settings),
            "own": OwnServices.of(settings),
        }
        documents = await stack.enter_async_context(open_client(timeout=_FETCH_SECONDS, **others))
        webhooks = await stack.enter_async_context(open_client(**others))  # not delayed by slow documents
        verifiers = await stack.enter_async_context(open_client(**others))  # nor by slow webhooks
        reader = await stack.enter_async_context(DocumentReader())
        scope_check = await stack.enter_async_context(ScopeCheck(sessions, reader, scope))
        commands = read_commands(settings.mcp_commands)
        await stack.enter_async_context(McpRefresh(sessions, documents, commands, reader))
        await stack.enter_async_context(ApprovalExpiry(sessions))
        await stack.enter_async_context(ApiRefresh(sessions, reader, documents, settings.api_refresh_hours))
        await stack.enter_async_context(WebhookSender(sessions, webhooks))
        await stack.enter_async_context(VerifierSender(sessions, verifiers))
        await stack.enter_async_context(RetentionLoop(sessions))
        await stack.enter_async_context(services.library.filling())
        listener.on_release(loader.wake)
        listener.on_release(reconciler.wake)
        disk = DiskSpace(sessions, settings)
        freeze_memory()
        yield Dependencies(
            sessions=sessions,
            listener=listener,
            library=services.library,
            promoter=promoter,
            first_release=FirstRelease.of(settings),
            adapters=services.adapters,
            notify_workers=worker_notifier(settings),
            http_client=documents,
            document_reader=reader,
            mcp_commands=commands,
            hosted_endpoints=hosted,
            readiness_checks={
                "database": lambda: check_schema(services.database.engine),
                "engine": services.engine.ready,
                "adapters": loader.ready,
                **remarks({"model": scope_check.warning, "hosted models": partial(hosted_failures, sessions)}),
                **readiness_checks(sessions, disk, shutdown),
            },
            occupancy=services.engine.occupancy,
            model_servers=services.engine.servers,
            disks=disk.disks,
            model_scope=scope,
            tokenizer=parts.tokenizer,
            judged=bool(settings.judge),
            chat_wait_seconds=settings.chat_wait_seconds,
            serving=Serving.of(settings),
            limits=Limits.defaults(settings),
            datasets=DatasetStore(settings.datasets_dir, settings.adapter_store),
            data_rules=DataRules.of(settings),
            public_url=settings.public_url.rstrip("/") or base_url(settings.host, settings.port),
        )
