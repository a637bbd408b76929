"""Metrics that a process counts itself. No label names a task, project, skill or caller."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from app.errors import SettingError

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SCORES = (0.0, 0.25, 0.5, 0.75, 1.0)

TASK_OUTCOMES = Counter(
    "sage_task_outcomes_total", "Tasks that ended, by state and stop reason", ["state", "stop_reason"]
)
TASK_SECONDS = Histogram("sage_task_duration_seconds", "Time of tasks from submission to end", buckets=_SECONDS)
PHASE_SECONDS = Histogram(
    "sage_task_phase_seconds", "Time of a task that ended, by phase", ["phase"], buckets=_SECONDS
)
TASK_SCORES = Histogram(
    "sage_task_score", "Scores by checks and judges, by the state of the release", ["release"], buckets=_SCORES
)
TASK_ATTEMPTS = Counter("sage_task_attempts_total", "Tasks that this runner began to execute, by cause", ["cause"])
LEASES_LOST = Counter("sage_task_leases_lost_total", "Tasks that another runner claimed while this one had them")
TURNS = Counter("sage_turns_total", "Turns of tasks that ended")
TOKENS = Counter("sage_tokens_total", "Tokens of tasks that ended", ["type"])
API_CALLS = Counter("sage_api_calls_total", "API calls of tasks that ended", ["result"])
SKILL_OFFERS = Counter("sage_skill_offers_total", "Skills offered to tasks that ended, by use", ["use"])
SWAP_SECONDS = Histogram(
    "sage_adapter_swap_seconds", "Time to load and verify an adapter", ["result"], buckets=_SECONDS
)
SKILL_REPAIRS = Counter(
    "sage_skill_repairs_total", "Skills that an API change touched, by what came of them", ["outcome"]
)
RETENTION_DELETED = Counter(
    "sage_retention_deleted_total", "Rows deleted because their project keeps them no longer", ["kind"]
)
RETENTION_HELD = Gauge(
    "sage_retention_held", "Projects with rows that are due but still needed, by a run for example", ["kind"]
)
TASKS_ERASED = Counter("sage_tasks_erased_total", "Tasks erased by request")
ADAPTERS = Gauge("sage_adapters", "Adapters that this process knows to be loaded, or cannot load", ["state"])


@contextmanager
def metrics_server(host: str, port: int) -> Iterator[None]:
    """Serves the metrics of this process. 0 is no port. Raises SettingError if it cannot be listened on."""
    if not port:
        yield
        return
    try:
        server, thread = start_http_server(port, host)
    except OSError as error:
        raise SettingError(f"port {port} on {host} cannot be used ({error}): set SAGE_METRICS_PORT") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
