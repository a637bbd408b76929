"""Metrics for Prometheus. No key is needed: they name no task, project or caller."""

from collections.abc import Callable, Sequence

from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.plugins.prometheus import PrometheusConfig
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, generate_latest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import queue_depth, runners, runs, tables
from app.db.tables import TaskState
from app.engine.dispatcher import Occupancy
from app.guarded_output import dropped_lines
from app.loop import running_loops

REQUESTS = PrometheusConfig(
    app_name="sage", prefix="sage", group_path=True, exclude=["/docs", "/healthz", "/livez", "/readyz", "/metrics"]
)


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
    gauge = Gauge("sage_model_servers", "Model servers", ["state"], registry=registry)
    for each, count in occupancy().servers.items():
        gauge.labels(each.value).set(count)
    _add_loops(registry)
    _add_runners(registry, await runners.live(session), await runners.starts(session))
    text = generate_latest(REGISTRY).decode() + generate_latest(registry).decode()
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _add_tasks(registry: CollectorRegistry, session: AsyncSession) -> None:
    depth = await queue_depth.read(session)
    gauge = Gauge("sage_tasks", "Tasks that have not ended", ["state"], registry=registry)
    gauge.labels(TaskState.ACCEPTED.value).set(depth.queued)
    gauge.labels(TaskState.RUNNING.value).set(depth.running)
    gauge.labels(TaskState.WAITING.value).set(depth.waiting)
    gauge = Gauge("sage_task_queue_age_seconds", "Time since the oldest queued task was sent", registry=registry)
    gauge.set(depth.oldest_seconds)


async def _add_runs(registry: CollectorRegistry, session: AsyncSession) -> None:
    counted = Gauge("sage_training_runs", "Training runs that have not ended", ["state"], registry=registry)
    steps = Gauge("sage_training_run_steps", "Steps of the running training runs", ["state"], registry=registry)
    progress = await runs.progress(session)
    counted.labels("queued").set(progress.queued)
    counted.labels("running").set(progress.running)
    steps.labels("done").set(progress.steps_done)
    steps.labels("planned").set(progress.steps_planned)


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
    gauge = Gauge("sage_runners", "Live runners", ["state"], registry=registry)
    faulty = sum(each.error is not None for each in live)
    gauge.labels("working").set(len(live) - faulty)
    gauge.labels("faulty").set(faulty)
    Counter("sage_runner_starts", "Runners that were ever started", registry=registry).inc(starts)
    labels = ["host", "pid"]
    tasks = Gauge("sage_runner_tasks", "Tasks that a runner executes", labels, registry=registry)
    memory = Gauge("sage_runner_memory_bytes", "Memory of a runner", labels, registry=registry)
    loops = Counter("sage_runner_loop_failures", "Failed rounds of its work", labels, registry=registry)
    restarts = Counter("sage_runner_loop_restarts", "Restarts of its work", labels, registry=registry)
    dropped = Counter("sage_runner_log_lines_dropped", "Lines it could not write", labels, registry=registry)
    for each in live:
        loops.labels(each.host, each.pid).inc(each.loop_failures)
        restarts.labels(each.host, each.pid).inc(each.loop_restarts)
        dropped.labels(each.host, each.pid).inc(each.dropped_lines)
        tasks.labels(each.host, each.pid).set(each.in_flight)
        memory.labels(each.host, each.pid).set(each.memory_bytes)
    gauge = Gauge("sage_generations", "Generations requested from model servers", ["state"], registry=registry)
    gauge.labels("in_flight").set(sum(each.generating for each in live))
    gauge.labels("waiting").set(sum(each.waiting for each in live))
