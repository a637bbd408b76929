"""The broker: a doorbell between the app and the trainer. What is to be done stands in the database."""

from pathlib import Path
from typing import Any
from uuid import UUID

import structlog
from celery import Celery
from kombu.exceptions import ChannelError, KombuError
from kombu.transport import TRANSPORT_ALIASES

from app.settings import Settings

TRAIN = "sage.train"  # the one job: its argument is the id of a training run
_ONE_TRY = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.1,
}  # to connect and ring
_STALE_SECONDS = 600  # a message as old as this was followed by others

TRANSPORT_ALIASES["folders"] = "app.filesystem_broker:Transport"
log = structlog.get_logger(__name__)


def open_broker(settings: Settings) -> Celery:
    """A Celery application on BROKER_URL, or on folders in the data directory where none is named.

    Messages are acknowledged early and results are not kept: rows carry both, so a lost message costs a delay.
    """
    broker = Celery("sage", broker=settings.broker_url or "folders://localhost//", set_as_current=False)
    broker.conf.update(
        broker_transport_options=_ONE_TRY if settings.broker_url else _folders(settings.data_dir / "broker"),
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_default_queue="training",
        worker_prefetch_multiplier=1,  # a busy worker hoards no run that another could start
        worker_hijack_root_logger=False,
    )
    return broker


def ring(broker: Celery, run_id: UUID) -> None:
    """Tell the workers that a run waits; call it after the commit that put it there. Blocks for a moment.

    A broker that does not take the message costs a delay: workers look into the table from time to time, too.
    """
    try:
        broker.send_task(TRAIN, args=[str(run_id)], expires=_STALE_SECONDS, retry=False)
    except (KombuError, ChannelError, OSError) as error:
        log.warning("nobody hears the doorbell", run=str(run_id), cause=str(error))


def _folders(root: Path) -> dict[str, Any]:
    """One folder for both directions: the worker reads what the app wrote."""
    messages, control = root / "messages", root / "control"
    for folder in (messages, control):
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        "polling_interval": 0.1,  # seconds
    }
