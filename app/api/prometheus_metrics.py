"""Metrics for Prometheus. No key is needed: they name no task, project or caller."""

from collections.abc import Callable, Sequence

from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.plugins.prometheus import PrometheusConfig
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, generate_latest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import approvals, models, runners
from app.db.models import TaskState
from app.engine.dispatcher import Occupancy

REQUESTS = PrometheusConfig(
    app_name="sage", prefix="sage", group_path=True, exclude=["/docs", "/healthz", "/readyz", "/metrics"]
)
_OPEN = (TaskState.ACCEPTED, TaskState.RUNNING)  # an index makes these two cheap to count


@get("/metrics", tags=["Health"], summary="Metrics for Prometheus", media_type=MediaType.TEXT)
async def metrics(
    session: NamedDependency[AsyncSession], occupancy: NamedDependency[Callable[[], Occupancy]]
) -> Response[str]:
    """Requests by path and status, process metrics, queued, running and waiting tasks, the state of the model
    servers, and the runners with their tasks and generations.
    """
    query = select(models.Task.state, func.count()).where(models.Task.state.in_(_OPEN)).group_by(models.Task.state)
    counts = dict((await session.execute(query)).all())
    registry = CollectorRegistry()
    gauge = Gauge("sage_tasks", "Tasks that have not ended", ["state"], registry=registry)
    for state in _OPEN:
        gauge.labels(state.value).set(counts.get(state, 0))
    gauge.labels(TaskState.WAITING.value).set(await approvals.count_waiting(session))
    gauge = Gauge("sage_model_servers", "Model servers", ["state"], registry=registry)
    for each, count in occupancy().servers.items():
        gauge.labels(each.value).set(count)
    _add_runners(registry, await runners.live(session), await runners.starts(session))
    text = generate_latest(REGISTRY).decode() + generate_latest(registry).decode()
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _add_runners(registry: CollectorRegistry, live: Sequence[models.RunnerProcess], starts: int) -> None:
    gauge = Gauge("sage_runners", "Live runners", ["state"], registry=registry)
    faulty = sum(each.error is not None for each in live)
    gauge.labels("working").set(len(live) - faulty)
    gauge.labels("faulty").set(faulty)
    Counter("sage_runner_starts", "Runners that were ever started", registry=registry).inc(starts)
    labels = ["host", "pid"]
    tasks = Gauge("sage_runner_tasks", "Tasks that a runner executes", labels, registry=registry)
    memory = Gauge("sage_runner_memory_bytes", "Memory of a runner", labels, registry=registry)
    for each in live:
        tasks.labels(each.host, each.pid).set(each.in_flight)
        memory.labels(each.host, each.pid).set(each.memory_bytes)
    gauge = Gauge("sage_generations", "Generations requested from model servers", ["state"], registry=registry)
    gauge.labels("in_flight").set(sum(each.generating for each in live))
    gauge.labels("waiting").set(sum(each.waiting for each in live))
