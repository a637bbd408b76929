"""The HTTP application over parts that already exist, so that tests can hand in their own."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import authorize, provide_access
from app.api.apis import ApiController
from app.api.docs import docs_routes, openapi_config
from app.api.feedback import FeedbackController
from app.api.health import healthz, readyz
from app.api.keys import KeyController
from app.api.metrics import REQUESTS, metrics
from app.api.parts import Parts
from app.api.problem import HANDLERS
from app.api.projects import ProjectController
from app.api.releases import ReleaseController
from app.api.request_log import log_requests
from app.api.skills import SkillController
from app.api.stream import StreamController
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
]
_MAX_BODY = 32 << 20  # 1,000 tasks of 20,000 characters fit

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]


def create_app(parts: Parts, lifespan: Sequence[Lifespan] = ()) -> Litestar:
    """`lifespan` opens what the parts need before the first request and closes it after the last."""

    async def session() -> AsyncIterator[AsyncSession]:
        async with parts.sessions() as opened:
            yield opened

    v1 = Router(
        "/v1",
        route_handlers=_CONTROLLERS,
        guards=[authorize],
        security=[{"key": []}],
        dependencies={"access": Provide(provide_access)},
    )
    given = {"work": parts.work, "library": parts.library, "client": parts.client, "probes": parts.probes}
    given |= {"sessions": parts.sessions, "feed": parts.feed}
    return Litestar(
        route_handlers=[v1, healthz, readyz, metrics, *docs_routes()],
        dependencies={"session": Provide(session), **{name: _always(part) for name, part in given.items()}},
        exception_handlers=HANDLERS,
        middleware=[log_requests, REQUESTS.middleware],
        openapi_config=openapi_config(version("sage-server")),
        request_max_body_size=_MAX_BODY,
        state=State({"sessions": parts.sessions}),
        lifespan=list(lifespan),
        logging_config=None,
    )


def _always(part: object) -> Provide:
    return Provide(lambda: part, sync_to_thread=False)
