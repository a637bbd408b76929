"""A Celery worker for training. A message only notifies: the queue is a table."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from celery import Celery, signals
from celery.worker import state

from app.queue import TRAIN, notify_workers, open_broker
from app.settings import Settings
from trainer.engines.sleep import sleepers
from trainer.worker.queue_reconciler import QueueReconciler
from trainer.worker.subprocess import TRAINING, attend

_RECONCILE_SECONDS = 2.0


def build(settings: Settings, command: Sequence[str] = TRAINING) -> Celery:
    """`command` is what carries a run out. While a worker runs, it also looks after the queue."""
    broker = open_broker(settings)

    @broker.task(name=TRAIN, shared=False)
    def train(run_id: str) -> None:
        """Safe to be told twice, or of a run that is gone."""
        attend(UUID(run_id), settings, command, _is_stopping)

    seconds = min(_RECONCILE_SECONDS, settings.lease_seconds / 4)
    notify = partial(notify_workers, broker)
    reconciler = QueueReconciler(settings.database_url, notify, seconds=seconds, sleepers=sleepers(settings))
    signals.worker_ready.connect(lambda **_: reconciler.start(), weak=False)
    signals.worker_shutdown.connect(lambda **_: reconciler.stop(), weak=False)
    return broker


def _is_stopping() -> bool:
    """Celery only notes the signal, and waits until its job is done."""
    return state.should_stop is not None or state.should_terminate is not None
