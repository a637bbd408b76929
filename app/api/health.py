"""Liveness and readiness, for load balancers and monitoring. No key is needed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
import structlog
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from app.db.database import TRANSIENT
from app.errors import AppError, first_line

log = structlog.get_logger(__name__)

ReadinessCheck = Callable[[], Awaitable[object]]
"""Returns if the component works (a string is a warning). Raises AppError with the reason if it does not."""

_TIMEOUT_SECONDS = 5.0  # of one check
_REMARK_SECONDS = 2.0  # of one remark: it ends before a check does


class Health(msgspec.Struct, frozen=True):
    status: str


class Readiness(msgspec.Struct, frozen=True):
    """Each component is `ready`, or its entry is the reason why not. A component with a warning is ready."""

    ready: bool
    components: dict[str, str]
    warnings: dict[str, str] = {}


@get("/healthz", tags=["Health"], summary="Check that the process is up")
async def healthz() -> Health:
    return Health("up")


@get("/livez", tags=["Health"], summary="Check that the process answers")
async def livez() -> Health:
    """Restart a process that does not answer this."""
    return Health("up")


@get(
    "/readyz",
    tags=["Health"],
    summary="Check that the server can execute tasks",
    responses={503: ResponseSpec(Readiness, description="A component is not ready", generate_examples=False)},
)
async def readyz(readiness_checks: NamedDependency[Mapping[str, ReadinessCheck]]) -> Response[Readiness]:
    """Checks the database, the model servers (`engine`), active adapters, disks, notifications and background
    work, and the runners: whether one is alive, claims tasks, and has a sandbox that works.
    """
    found = await readiness(readiness_checks)
    return Response(found, status_code=200 if found.ready else 503)


def remarks(checks: Mapping[str, Callable[[], Awaitable[str]]]) -> Mapping[str, ReadinessCheck]:
    """Checks of what tasks can be executed without. They only warn: a remark that is slow, or cannot be made, is
    left out, as the log says.
    """
    return {name: partial(_remark, name, check) for name, check in checks.items()}


async def readiness(checks: Mapping[str, ReadinessCheck]) -> Readiness:
    """Runs all checks at once, each for at most some seconds."""
    results = await asyncio.gather(*(_run(check) for check in checks.values()))
    components = {name: state for name, (state, _) in zip(checks, results, strict=True)}
    warnings = {name: warning for name, (_, warning) in zip(checks, results, strict=True) if warning}
    return Readiness(all(state == "ready" for state in components.values()), components, warnings)


async def _run(check: ReadinessCheck) -> tuple[str, str]:
    """The component's state and warning."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            result = await check()
    except TimeoutError:
        return f"no answer within {_TIMEOUT_SECONDS:g} s", ""
    except AppError as error:
        return str(error), ""
    return "ready", result if isinstance(result, str) else ""


async def _remark(name: str, check: Callable[[], Awaitable[str]]) -> str:
    try:
        async with asyncio.timeout(_REMARK_SECONDS):
            return await check()
    except TimeoutError:
        cause = f"it took more than {_REMARK_SECONDS:g} s"
    except (AppError, *TRANSIENT) as error:
        cause = first_line(error)
    log.warning("a remark of /readyz is left out", remark=name, cause=cause)
    return ""
