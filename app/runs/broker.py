"""The broker between the app and the trainer. The queue itself is a table; messages only notify the workers."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog
from celery import Celery
from kombu.exceptions import ChannelError, KombuError
from kombu.transport import TRANSPORT_ALIASES

from app.base.settings import Settings

TRAIN = "sage.train"  # the only job: its argument is the id of a training run
_ONE_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
_EXPIRY_SECONDS = 600  # by then other messages have followed

TRANSPORT_ALIASES["folders"] = "app.broker.folder_transport:FolderTransport"
log = structlog.get_logger(__name__)


def open_broker(settings: Settings) -> Celery:
    """A Celery application on BROKER_URL, or by default on folders in the data directory.

    Messages are acknowledged early and results are not kept: rows carry both, so a lost message costs a delay.
    """
    broker = Celery("sage", broker=settings.broker_url or "folders://localhost//", set_as_current=False)
    broker.conf.update(
        broker_transport_options=_ONE_RETRY if settings.broker_url else _folders(settings.data_dir / "broker"),
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_default_queue="training",
        worker_prefetch_multiplier=1,  # a busy worker reserves no run that another could start
        worker_hijack_root_logger=False,
    )
    return broker


def notify_workers(broker: Celery, run_id: UUID) -> None:
    """Announce a queued run. Call it after the commit that queued it. Blocks for a moment.

    If the broker is unavailable, the run starts later: workers also poll the table.
    """
    try:
        broker.send_task(TRAIN, args=[str(run_id)], expires=_EXPIRY_SECONDS, retry=False)
    except (KombuError, ChannelError, OSError) as error:
        log.warning("the broker is unavailable; workers will poll", run=str(run_id), cause=str(error))


def worker_notifier(settings: Settings) -> Callable[[UUID], Coroutine[Any, Any, None]]:
    """`notify_workers` for coroutines. It opens the broker on first use: a server that never trains needs none."""
    broker = cache(lambda: open_broker(settings))

    async def notify(run_id: UUID) -> None:
        await asyncio.to_thread(lambda: notify_workers(broker(), run_id))

    return notify


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
