"""The broker between the app and the trainer. The queue itself is a table; messages only notify the workers.

Where no BROKER_URL is set, messages are files in a folder that all processes of a host share.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import Empty
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog
from celery import Celery
from kombu.exceptions import ChannelError, KombuError
from kombu.transport import TRANSPORT_ALIASES, filesystem, virtual

from app.base.settings import Settings

TRAIN = "sage.train"  # the only job: its argument is the id of a training run
_ONE_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
_EXPIRY_SECONDS = 600  # by then other messages have followed
log = structlog.get_logger(__name__)

NotifyWorkers = Callable[[UUID], Awaitable[None]]
"""Announces a queued training run. A lost notification costs a delay, never a run."""

TRANSPORT_ALIASES["folders"] = "app.runs.broker:FolderTransport"


class FolderChannel(filesystem.Channel):
    """Writes messages atomically, and delivers each to one worker."""

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        """Raises ChannelError if the message cannot be written."""
        name = f"{time.time_ns()}_{uuid4()}.{queue}.msg"
        file, partial = (Path(self.data_folder_out, each) for each in (name, f".{name}"))
        try:
            partial.write_bytes(msgspec.json.encode(message))
            partial.rename(file)
        except OSError as error:
            raise ChannelError(f"the message {file} cannot be written: {error.strerror}") from error

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        """The oldest message. Raises Empty if there is none."""
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] == f"{queue}.msg":
                file = Path(self.data_folder_in, name)
                try:
                    content = file.read_bytes()
                    file.unlink()  # only one worker succeeds
                    return msgspec.json.decode(content, type=dict[str, Any])
                except (FileNotFoundError, msgspec.DecodeError):  # taken by another, or cut off by a full disk
                    continue
        raise Empty

    def get_table(self, exchange: str) -> list[Any]:
        with self._locked():
            table: list[Any] = super().get_table(exchange)
            return table

    def _queue_bind(self, *arguments: Any) -> None:
        with self._locked():
            super()._queue_bind(*arguments)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Kombu truncates its table of queues before it locks it, so readers need a lock of our own."""
        self.control_folder.mkdir(parents=True, exist_ok=True)
        with (self.control_folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class FolderTransport(filesystem.Transport):
    """Keeps declared queues per connection: another connection may use other folders."""

    Channel = FolderChannel

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.state = virtual.BrokerState()


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
