"""The broker: a doorbell between the app and the trainer. What is to be done stands in the database."""

from pathlib import Path
from typing import Any

from celery import Celery

from app.settings import Settings


def open_broker(settings: Settings) -> Celery:
    """A Celery application on BROKER_URL, or on folders in the data directory where none is named.

    Messages are acknowledged early and results are not kept: rows carry both, so a lost message costs a delay.
    """
    broker = Celery("sage", broker=settings.broker_url or "filesystem://localhost//", set_as_current=False)
    broker.conf.update(
        broker_transport_options={} if settings.broker_url else _folders(settings.data_dir / "broker"),
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_default_queue="training",
        worker_prefetch_multiplier=1,  # a busy worker hoards no run that another could start
        worker_hijack_root_logger=False,
    )
    return broker


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
