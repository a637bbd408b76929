"""Report a finished step to the run's log and to its row."""

import structlog

from app.records import Json
from trainer.run_job import RunProgress
from trainer.runs.step_metrics import with_warnings

log = structlog.get_logger(__name__)


async def report_step(progress: RunProgress, index: int, total: int, metrics: dict[str, Json]) -> None:
    """Log the step and write it to the row. Raises what `progress` raises."""
    metrics = with_warnings(metrics)
    for warning in metrics.get("warnings", ()):
        log.warning(warning, step=index)
    log.info("step", step=index, **{name: value for name, value in metrics.items() if name != "warnings"})
    await progress.step(index, total, metrics)
