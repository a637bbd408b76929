"""The HTTP application over parts that already exist, so that tests can hand in their own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import authorize, provide_access
from app.api.apis import ApiController
from app.api.audit import AuditController
from app.api.canaries import CanaryController
from app.api.dependencies import Parts
from app.api.feedback import FeedbackController
from app.api.health import healthz, readyz
from app.api.keys import KeyController
from app.api.metrics import REQUESTS, metrics
from app.api.openapi_pages import docs_routes, openapi_config
from app.api.problem import HANDLERS
from app.api.projects import ProjectController
from app.api.release_diff import ReleaseDiffController
from app.api.releases import ReleaseController
from app.api.request_log import log_requests
from app.api.run_events import RunStreamController
from app.api.runs import RunController
from app.api.schedule import ScheduleController
from app.api.shadows import ShadowController
from app.api.skills import SkillController
from app.api.task_events import StreamController
from app.api.tasks import TaskController
from app.api.trajectories import TrajectoryController

_CONTROLLERS = [
    TaskController,
    StreamController,
    TrajectoryController,
    SkillController,
    FeedbackController,
    ApiController,
    ProjectController,
    KeyController,
    ReleaseController,
    ReleaseDiffController,
    CanaryController,
    ShadowController,
    AuditController,
    RunController,
    RunStreamController,
    ScheduleController,
]
_MAX_BODY = 32 << 20  # 1,000 tasks of 20,000 characters fit

OpenParts = Callable[[], AbstractAsyncContextManager[Parts]]
"""Opens the parts when the application starts, and closes them when it ends."""


def create_app(open_parts: OpenParts) -> Litestar:
    v1 = Router(
        "/v1",
        route_handlers=_CONTROLLERS,
        guards=[authorize],
        security=[{"key": []}],
        dependencies={"access": Provide(provide_access)},
    )

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with open_parts() as parts:
            app.state["parts"] = parts
            yield

    return Litestar(
        route_handlers=[v1, healthz, readyz, metrics, *docs_routes()],
        dependencies={"session": Provide(_open_session)} | {name: _part(name) for name in Parts.__struct_fields__},
        exception_handlers=HANDLERS,
        middleware=[log_requests, REQUESTS.middleware],
        openapi_config=openapi_config(version("sage-server")),
        request_max_body_size=_MAX_BODY,
        lifespan=[lifespan],
        logging_config=None,
    )


async def _open_session(state: State) -> AsyncIterator[AsyncSession]:
    """One per request, closed before the answer goes out: what was not committed by then is undone."""
    async with state["parts"].sessions() as opened:
        yield opened


def _part(name: str) -> Provide:
    """A handler gets a part by naming it."""

    def provide(state: State) -> object:
        return getattr(state["parts"], name)

    return Provide(provide, sync_to_thread=False)
