"""Liveness and readiness, for load balancers and monitoring. No key is needed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from app.db import runners
from app.db.database import TRANSIENT, Sessions
from app.errors import AppError

ReadinessCheck = Callable[[], Awaitable[object]]
"""Returns if the component works (a string is a warning). Raises AppError with the reason if it does not."""

_TIMEOUT_SECONDS = 5.0  # of one check


class RunnerError(AppError):
    """No runner can execute tasks."""

    status = 503


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


@get(
    "/readyz",
    tags=["Health"],
    summary="Check that the server can execute tasks",
    responses={503: ResponseSpec(Readiness, description="A component is not ready", generate_examples=False)},
)
async def readyz(readiness_checks: NamedDependency[Mapping[str, ReadinessCheck]]) -> Response[Readiness]:
    """Checks the database, the engine, and whether a runner is alive whose sandbox works."""
    results = await asyncio.gather(*(_run(check) for check in readiness_checks.values()))
    components = {name: state for name, (state, _) in zip(readiness_checks, results, strict=True)}
    warnings = {name: warning for name, (_, warning) in zip(readiness_checks, results, strict=True) if warning}
    ready = all(state == "ready" for state in components.values())
    return Response(Readiness(ready, components, warnings), status_code=200 if ready else 503)


async def check_runners(sessions: Sessions) -> str:
    """Raises RunnerError if no live runner can execute tasks. Returns what is wrong with others."""
    try:
        async with sessions() as session:
            live = await runners.live(session)
    except TRANSIENT as error:
        raise RunnerError("unknown while the database does not answer") from error
    faults = [f"{each.host} (pid {each.pid}): {each.error}" for each in live if each.error]
    if not live:
        raise RunnerError("no runner has reported for some seconds: start one with `sage runner`, or read its log")
    if len(faults) == len(live):
        raise RunnerError("; ".join(faults))
    return "; ".join(faults)


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
