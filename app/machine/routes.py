"""Liveness and readiness, for load balancers and monitoring, and metrics for Prometheus. No key is needed: they
name no task, project or caller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
import structlog
from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.plugins.prometheus import PrometheusConfig
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, generate_latest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError, first_line
from app.base.guarded_output import dropped_lines
from app.base.loop import running_loops
from app.db import runners, tables
from app.db.database import TRANSIENT
from app.engine.dispatch import Occupancy
from app.runs import store as runs
from app.tasks import queue

log = structlog.get_logger(__name__)

REQUESTS = PrometheusConfig(
    app_name="sage", prefix="sage", group_path=True, exclude=["/docs", "/healthz", "/livez", "/readyz", "/metrics"]
)

ReadinessCheck = Callable[[], Awaitable[object]]
"""Returns if the component works (a string is a warning). Raises AppError with the reason if it does not."""

_TIMEOUT_SECONDS = 5.0  # of one check
_REMARK_SECONDS = 2.0  # of one remark: it ends before a check does
_OF_RUNNERS: tuple[tuple[type[Counter | Gauge], str, str, str], ...] = (  # with the column that each shows
    (Gauge, "sage_runner_tasks", "Tasks that a runner executes", "in_flight"),
    (Gauge, "sage_runner_memory_bytes", "Memory of a runner", "memory_bytes"),
    (Counter, "sage_runner_loop_failures", "Failed rounds of its work", "loop_failures"),
    (Counter, "sage_runner_loop_restarts", "Restarts of its work", "loop_restarts"),
    (Counter, "sage_runner_log_lines_dropped", "Lines it could not write", "dropped_lines"),
)


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


@get("/metrics", tags=["Health"], summary="Metrics for Prometheus", media_type=MediaType.TEXT)
async def metrics(
    session: NamedDependency[AsyncSession], occupancy: NamedDependency[Callable[[], Occupancy]]
) -> Response[str]:
    """Requests by path and status, process metrics, queued, running and waiting tasks, the state of the model
    servers, adapters, the runners with their tasks and generations, training runs, and failures of background
    work. What a runner measures of its tasks it serves itself, at SAGE_METRICS_PORT.
    """
    registry = CollectorRegistry()
    await _add_tasks(registry, session)
    await _add_runs(registry, session)
    servers = {state.value: count for state, count in occupancy().servers.items()}
    _add_states(registry, "sage_model_servers", "Model servers", servers)
    _add_loops(registry)
    _add_runners(registry, await runners.live(session), await runners.starts(session))
    text = generate_latest(REGISTRY).decode() + generate_latest(registry).decode()
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _add_states(registry: CollectorRegistry, name: str, about: str, values: Mapping[str, float]) -> None:
    gauge = Gauge(name, about, ["state"], registry=registry)
    for state, value in values.items():
        gauge.labels(state).set(value)


async def _add_tasks(registry: CollectorRegistry, session: AsyncSession) -> None:
    depth = await queue.read(session)
    counts = {"accepted": depth.queued, "running": depth.running, "waiting": depth.waiting}
    _add_states(registry, "sage_tasks", "Tasks that have not ended", counts)
    gauge = Gauge("sage_task_queue_age_seconds", "Time since the oldest queued task was sent", registry=registry)
    gauge.set(depth.oldest_seconds)


async def _add_runs(registry: CollectorRegistry, session: AsyncSession) -> None:
    progress = await runs.progress(session)
    counts = {"queued": progress.queued, "running": progress.running}
    steps = {"done": progress.steps_done, "planned": progress.steps_planned}
    _add_states(registry, "sage_training_runs", "Training runs that have not ended", counts)
    _add_states(registry, "sage_training_run_steps", "Steps of the running training runs", steps)


def _add_loops(registry: CollectorRegistry) -> None:
    """Of this process."""
    failures = Counter("sage_loop_failures", "Failed rounds of background work", ["loop"], registry=registry)
    restarts = Counter("sage_loop_restarts", "Restarts of background work that ended", ["loop"], registry=registry)
    for each in running_loops():
        failures.labels(each.name).inc(each.failed)
        restarts.labels(each.name).inc(each.restarts)
    dropped = Counter("sage_log_lines_dropped", "Log lines that could not be written", registry=registry)
    dropped.inc(dropped_lines())


def _add_runners(registry: CollectorRegistry, live: Sequence[tables.RunnerProcess], starts: int) -> None:
    faulty = sum(each.error is not None for each in live)
    _add_states(registry, "sage_runners", "Live runners", {"working": len(live) - faulty, "faulty": faulty})
    Counter("sage_runner_starts", "Runners that were ever started", registry=registry).inc(starts)
    for kind, name, about, column in _OF_RUNNERS:
        metric = kind(name, about, ["host", "pid"], registry=registry)
        for each in live:
            one = metric.labels(each.host, each.pid)  # two have the same, where a container was started anew
            one.set(getattr(each, column)) if isinstance(one, Gauge) else one.inc(getattr(each, column))
    states = {"in_flight": sum(each.generating for each in live), "waiting": sum(each.waiting for each in live)}
    _add_states(registry, "sage_generations", "Generations requested from model servers", states)
