"""The Celery worker for training. Its messages only say that a run waits: the rows are the queue."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from celery import Celery, signals
from celery.worker import state

from app.broker.celery_broker import TRAIN, notify_workers, open_broker
from app.settings import Settings
from trainer.engines.sleep import servers_that_sleep
from trainer.run_job import runs_directory
from trainer.worker.launch_run import TRAIN_COMMAND, launch_run
from trainer.worker.queue_reconciler import QueueReconciler

_RECONCILE_SECONDS = 2.0


def build(settings: Settings, command: Sequence[str] = TRAIN_COMMAND) -> Celery:
    """Build the application: `command` executes one run. A running worker also reconciles the queue."""
    broker = open_broker(settings)

    @broker.task(name=TRAIN, shared=False)
    def train(run_id: str) -> None:
        """Harmless if it is delivered twice, or the run is gone."""
        launch_run(UUID(run_id), settings, command, _is_stopping)

    reconciler = QueueReconciler(
        settings.database_url,
        partial(notify_workers, broker),
        is_idle=lambda: not state.active_requests,
        runs=runs_directory(settings),
        seconds=min(_RECONCILE_SECONDS, settings.lease_seconds / 4),
        servers_that_sleep=servers_that_sleep(settings),
        notify_socket=settings.notify_socket,
    )
    signals.worker_ready.connect(lambda **_: reconciler.start(), weak=False)
    signals.worker_shutdown.connect(lambda **_: reconciler.stop(), weak=False)
    return broker


def _is_stopping() -> bool:
    """Celery only records the signal, and waits until its job is done."""
    return state.should_stop is not None or state.should_terminate is not None
