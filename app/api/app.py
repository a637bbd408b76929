"""The HTTP application: its routes, and the dependencies that their handlers name."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from litestar import Litestar, Request, Router
from litestar.datastructures import State
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import provide_access
from app.api.allowed_methods import answer_options
from app.api.api_call import ApiCallController
from app.api.api_changes import ApiChangeController
from app.api.api_content import api_readers
from app.api.api_credentials import CredentialController
from app.api.api_operations import ApiOperationController
from app.api.api_practice import ApiPracticeController
from app.api.api_trial import ApiTrialController
from app.api.apis import ApiController
from app.api.approvals import ApprovalController
from app.api.audit import AuditController
from app.api.canaries import CanaryController
from app.api.chat_completions.routes import ChatController, ChatModelController
from app.api.datasets import DatasetController
from app.api.dependencies import Dependencies
from app.api.environments import EnvironmentController
from app.api.erasure import ErasureController
from app.api.exams import ExamController
from app.api.feedback import FeedbackController
from app.api.health import healthz, livez, readyz
from app.api.hosted_models import HostedModelController
from app.api.json_request import JsonRequest
from app.api.judge_agreement import JudgeController
from app.api.key_gate import KeyGate
from app.api.keys import KeyController
from app.api.manual import manual_routes
from app.api.mcp_server.endpoint import mcp, running_server
from app.api.oauth_callback import client_document, oauth_callback
from app.api.openapi_pages import docs_routes, openapi_config
from app.api.problem import HANDLERS
from app.api.project_access import authorize
from app.api.projects import ProjectController
from app.api.prometheus_metrics import REQUESTS, metrics
from app.api.release_diff import ReleaseDiffController
from app.api.releases import ReleaseController
from app.api.replays import ReplayController
from app.api.request_log import log_requests
from app.api.run_events import RunEventsController
from app.api.runners import RunnerController
from app.api.runs import RunController
from app.api.schedule import ScheduleController
from app.api.secrets import SecretController
from app.api.shadows import ShadowController
from app.api.skill_folders import SkillFolderController
from app.api.skill_runs import SkillRunController
from app.api.skills import SkillController
from app.api.statistics import StatisticsController
from app.api.task_events import TaskEventsController
from app.api.task_export import ExportController
from app.api.tasks import TaskController
from app.api.trajectories import TrajectoryController
from app.api.watches import WatchController
from app.api.webhooks import WebhookController
from app.db.database import reading

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
_MAX_BODY_BYTES = 32 << 20  # room for 1,000 tasks of 20,000 characters

OpenDependencies = Callable[[], AbstractAsyncContextManager[Dependencies]]
"""Opens the dependencies when the application starts, and closes them when it stops."""


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
            async with running_server(dependencies) as app.state["mcp"]:
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
            *manual_routes(),
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
